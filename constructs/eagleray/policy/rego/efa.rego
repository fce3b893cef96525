package eagleray.policy

import rego.v1

# METADATA
# title: efa-interfaces
# description: >-
#   NCCL uses the EFA interfaces that a node has: one on every network card that can have it, the first of which
#   carries IP too; a kind that the card cannot have is refused only when the node is launched
# related_resources:
# - ref: EC2 user guide, efa-acc-inst-types
violation contains v if {
	some name, group in efa_nodegroups
	group.template == ""
	v := make_diag_at("efa-interfaces", "ERROR", name, "Properties.LaunchTemplate", sprintf(
		"no launch template of this app, so nodes of %s come without EFA; use GpuNodegroup, or a template with efa_interfaces()",
		[group.type],
	))
}

violation contains v if {
	some group in efa_nodegroups
	group.template != ""
	some card in numbers.range(0, (group.facts.first + group.facts.efa) - 1)
	found := [interface |
		some interface in group.interfaces
		object.get(interface, "NetworkCardIndex", 0) == card
	]
	count(found) != 1
	v := make_diag_at("efa-interfaces", "ERROR", group.template, "Properties.LaunchTemplateData.NetworkInterfaces", sprintf(
		"%d interfaces on network card %d of %s; use one on each of its cards 0 to %d",
		[count(found), card, group.type, (group.facts.first + group.facts.efa) - 1],
	))
}

violation contains v if {
	some group in efa_nodegroups
	some i, interface in group.interfaces
	card := object.get(interface, "NetworkCardIndex", 0)
	not card in numbers.range(0, (group.facts.first + group.facts.efa) - 1)
	v := make_diag_at("efa-interfaces", "ERROR", group.template, at(i, "NetworkCardIndex"), sprintf(
		"%s has no network card %v for it; use 0 to %d", [group.type, card, (group.facts.first + group.facts.efa) - 1],
	))
}

violation contains v if {
	some group in efa_nodegroups
	some i, interface in group.interfaces
	card := object.get(interface, "NetworkCardIndex", 0)
	found := object.get(interface, "InterfaceType", "interface")
	found != right_kind(group.facts, card)
	v := make_diag_at("efa-interfaces", "ERROR", group.template, at(i, "InterfaceType"), sprintf(
		"%v on network card %v of %s; use %s", [found, card, group.type, right_kind(group.facts, card)],
	))
}

violation contains v if {
	some group in efa_nodegroups
	some i, interface in group.interfaces
	card := object.get(interface, "NetworkCardIndex", 0)
	device := object.get(interface, "DeviceIndex", -1)
	not device in devices(card)
	v := make_diag_at("efa-interfaces", "ERROR", group.template, at(i, "DeviceIndex"), sprintf(
		"is %s on network card %v; use %d", [said(device), card, min([card, 1])],
	))
}

violation contains v if {
	some group in nodegroups
	some i, interface in group.interfaces
	is_efa(interface)
	some type in group.types
	not unknown(type)
	object.get(instance_types, type, {"efa": 0}).efa == 0
	v := make_diag_at("efa-interfaces", "ERROR", group.template, at(i, "InterfaceType"), sprintf(
		"%s for %s, which is not known to have EFA; use a type that has, such as g6.12xlarge", [interface.InterfaceType, type],
	))
}

# METADATA
# title: efa-groups
# description: >-
#   EKS adds the cluster's security group to nodes only when the template names none: without it a node cannot reach
#   the control plane, nor a pod on another node
# related_resources:
# - ref: EKS user guide, launch-templates
violation contains v if {
	some group in nodegroups
	some i, interface in group.interfaces
	groups := object.get(interface, "Groups", [])
	not cluster_group(group.properties) in groups
	v := make_diag_at("efa-groups", "ERROR", group.template, at(i, "Groups"),
		"not in the security group of the cluster that the nodegroup joins; add cluster_security_group_id")
}

violation contains v if {
	some group in nodegroups
	some i, interface in group.interfaces
	is_efa(interface)
	count([one |
		some one in object.get(interface, "Groups", [])
		one != cluster_group(group.properties)
		regex.match(`^(sg-[0-9a-f]+$|\$\{)`, one)
	]) == 0
	v := make_diag_at("efa-groups", "ERROR", group.template, at(i, "Groups"),
		"an EFA interface in no group of its own; add that of EfaSecurityGroup, which lets all traffic to and from itself")
}

# METADATA
# title: efa-traffic
# description: >-
#   EFA needs its security group to let all traffic in from itself and out to itself: egress to 0.0.0.0/0 does not
#   cover EFA's own protocol, and the first collective between nodes ends in libfabric's error 4126
# related_resources:
# - ref: EC2 user guide, efa-start; EKS user guide, sec-group-reqs
violation contains v if {
	some id in own_groups
	not lets(id, "AWS::EC2::SecurityGroupIngress", "SourceSecurityGroupId")
	not another_for_all(id)
	v := make_diag_at("efa-traffic", "ERROR", id, "Properties.SecurityGroupIngress",
		"on EFA interfaces, but does not let all traffic (-1) in from itself; use EfaSecurityGroup, or a CfnSecurityGroupIngress")
}

violation contains v if {
	some id in own_groups
	not lets(id, "AWS::EC2::SecurityGroupEgress", "DestinationSecurityGroupId")
	not another_for_all(id)
	v := make_diag_at("efa-traffic", "ERROR", id, "Properties.SecurityGroupEgress",
		"on EFA interfaces, but does not let all traffic (-1) out to itself; use EfaSecurityGroup, or a CfnSecurityGroupEgress")
}

at(i, field) := sprintf("Properties.LaunchTemplateData.NetworkInterfaces.%d.%s", [i, field])

said(device) := "not set" if device == -1

said(device) := sprintf("%v", [device]) if device != -1

# Card 0 carries the node's IP traffic; the others take no address and give the host no second route.
right_kind(facts, card) := "efa" if {
	card == 0
	facts.first == 0
}

right_kind(facts, card) := "interface" if {
	card == 0
	facts.first > 0
}

right_kind(_, card) := "efa-only" if card != 0

devices(card) := {0} if card == 0

devices(card) := {0, 1} if card != 0

cluster_group(nodegroup) := sprintf("${%s.ClusterSecurityGroupId}", [trim_suffix(trim_prefix(nodegroup.ClusterName, "${"), "}")])

# The app's security groups on EFA interfaces.
own_groups contains id if {
	some id, _ in of_type("AWS::EC2::SecurityGroup")
	some interface in efa_interfaces
	ref(id) in interface.Groups
}

efa_interfaces contains interface if {
	some data_of in of_type("AWS::EC2::LaunchTemplate")
	some interface in object.get(data_of.LaunchTemplateData, "NetworkInterfaces", [])
	is_efa(interface)
}

lets(id, kind_of_rule, other) if {
	some one in of_type(kind_of_rule)
	one.GroupId == ref(id)
	one[other] == ref(id)
	sprintf("%v", [one.IpProtocol]) == "-1"
}

# Every EFA interface that this group is on is in another one that does it all.
another_for_all(id) if {
	every interface in [one | some one in efa_interfaces; ref(id) in one.Groups] {
		some other, _ in of_type("AWS::EC2::SecurityGroup")
		other != id
		ref(other) in interface.Groups
		lets(other, "AWS::EC2::SecurityGroupIngress", "SourceSecurityGroupId")
		lets(other, "AWS::EC2::SecurityGroupEgress", "DestinationSecurityGroupId")
	}
}
