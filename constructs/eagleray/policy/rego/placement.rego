package eagleray.policy

import rego.v1

# METADATA
# title: one-zone
# description: >-
#   EFA does not cross zones, and a cluster placement group lies in one
# related_resources:
# - ref: EC2 user guide, efa
violation contains v if {
	some name, group in efa_nodegroups
	subnets := {subnet | some subnet in object.get(group.properties, "Subnets", [])}
	count(subnets) != 1
	not same_zone(subnets)
	v := make_diag_at("one-zone", "ERROR", name, "Properties.Subnets", sprintf(
		"%d subnets that are not seen to lie in one zone; use one, as TrainingVpc.training_subnet", [count(subnets)],
	))
}

same_zone(subnets) if {
	zones := [zone |
		some id, subnet in of_type("AWS::EC2::Subnet")
		ref(id) in subnets
		zone := subnet.AvailabilityZone
	]
	count(zones) == count(subnets)
	count({zone | some zone in zones}) == 1
}

# METADATA
# title: placement-group
# description: >-
#   Only a cluster placement group puts nodes close together; in one that a reservation was not made in EC2 finds no
#   capacity, and it places the nodes of a Capacity Block itself
# related_resources:
# - ref: EC2 user guide, placement-strategies; terraform-aws-eks, pull request 3730
violation contains v if {
	some group in efa_nodegroups
	group.template != ""
	object.get(group.properties, "CapacityType", "ON_DEMAND") != "CAPACITY_BLOCK"
	not group.data.CapacityReservationSpecification.CapacityReservationTarget
	not group.data.Placement.GroupName
	not group.data.Placement.GroupId
	v := make_diag_at("placement-group", "ERROR", group.template, "Properties.LaunchTemplateData.Placement",
		"no placement group for nodes that talk over EFA; name a CfnPlacementGroup with strategy cluster")
}

violation contains v if {
	some group in efa_nodegroups
	object.get(group.properties, "CapacityType", "ON_DEMAND") == "CAPACITY_BLOCK"
	group.data.Placement
	v := make_diag_at("placement-group", "ERROR", group.template, "Properties.LaunchTemplateData.Placement",
		"a placement group for a Capacity Block, in which EC2 finds none of its instances; leave it out")
}

violation contains v if {
	some id, placement in of_type("AWS::EC2::PlacementGroup")
	some group in efa_nodegroups
	ref(id) in {object.get(group.data.Placement, "GroupName", ""), object.get(group.data.Placement, "GroupId", "")}
	strategy := object.get(placement, "Strategy", "not set")
	strategy != "cluster"
	v := make_diag_at("placement-group", "ERROR", id, "Properties.Strategy",
		sprintf("%v, which does not keep EFA's nodes close together; use cluster", [strategy]))
}

violation contains v if {
	some group in efa_nodegroups
	some name in [object.get(object.get(group.data, "Placement", {}), "GroupName", "")]
	startswith(name, "${")
	not contains(name, "::")
	not name in {ref(id) | some id, _ in of_type("AWS::EC2::PlacementGroup")}
	not contains(name, "import ")
	not contains(name, "parameter ")
	v := make_diag_at("placement-group", "ERROR", group.template, "Properties.LaunchTemplateData.Placement.GroupName",
		sprintf("%s is no placement group; name a CfnPlacementGroup with strategy cluster", [name]))
}

# METADATA
# title: capacity-block
# description: >-
#   EKS wants four things for a Capacity Block, and none of them for anything else: capacity type, market, reservation,
#   and the instance type in the launch template
# related_resources:
# - ref: EKS user guide, capacity-blocks-mng
violation contains v if {
	some name, group in nodegroups
	object.get(group.properties, "CapacityType", "ON_DEMAND") == "CAPACITY_BLOCK"
	some missing in {
		["InstanceMarketOptions.MarketType", "capacity-block"] |
			object.get(object.get(group.data, "InstanceMarketOptions", {}), "MarketType", "") != "capacity-block"
	} | {
		["CapacityReservationSpecification.CapacityReservationTarget.CapacityReservationId", "the block's id, cr-…"] |
			not reserved(group.data)
	} | {
		["InstanceType", "the block's instance type"] | not group.data.InstanceType
	}
	v := make_diag_at("capacity-block", "ERROR", holder(group, name), sprintf("Properties.LaunchTemplateData.%s", [missing[0]]),
		sprintf("not what a nodegroup of a Capacity Block needs; use %s", [missing[1]]))
}

violation contains v if {
	some name, group in nodegroups
	object.get(group.properties, "CapacityType", "ON_DEMAND") != "CAPACITY_BLOCK"
	group.data.InstanceMarketOptions
	v := make_diag_at("capacity-block", "ERROR", group.template, "Properties.LaunchTemplateData.InstanceMarketOptions",
		"EKS refuses a market in the template but for a Capacity Block; leave it out, and set the nodegroup's capacity_type")
}

# METADATA
# title: capacity-target
# description: >-
#   A reservation pays for nodes only when the template aims at it, and Spot takes none
# related_resources:
# - ref: EC2 user guide, capacity-reservations-using
violation contains v if {
	some group in nodegroups
	specification := group.data.CapacityReservationSpecification
	target := object.get(specification, "CapacityReservationTarget", {})
	aims := [aim | some field in ["CapacityReservationId", "CapacityReservationResourceGroupArn"]; aim := target[field]]
	not aimed(specification, aims)
	v := make_diag_at("capacity-target", "ERROR", group.template, "Properties.LaunchTemplateData.CapacityReservationSpecification",
		"aims at no one reservation; set CapacityReservationTarget.CapacityReservationId, or leave all of it out")
}

violation contains v if {
	some group in nodegroups
	group.data.CapacityReservationSpecification.CapacityReservationTarget
	object.get(group.properties, "CapacityType", "ON_DEMAND") == "SPOT"
	v := make_diag_at("capacity-target", "ERROR", group.template, "Properties.LaunchTemplateData.CapacityReservationSpecification",
		"a reservation for Spot instances, which are not taken from one; use capacity type ON_DEMAND")
}

violation contains v if {
	some group in nodegroups
	id := group.data.CapacityReservationSpecification.CapacityReservationTarget.CapacityReservationId
	not regex.match(`^(cr-[0-9a-f]{8,17}|\$\{.*\})$`, id)
	v := make_diag_at("capacity-target", "ERROR", group.template,
		"Properties.LaunchTemplateData.CapacityReservationSpecification.CapacityReservationTarget.CapacityReservationId",
		sprintf("%s is no id of a reservation; it looks like cr-0123456789abcdef0", [id]))
}

violation contains v if {
	some name, group in nodegroups
	found := object.get(group.properties, "CapacityType", "ON_DEMAND")
	not found in {"ON_DEMAND", "SPOT", "CAPACITY_BLOCK"}
	not unknown(found)
	v := make_diag_at("capacity-target", "ERROR", name, "Properties.CapacityType",
		sprintf("%s is no capacity type; use ON_DEMAND, SPOT or CAPACITY_BLOCK", [found]))
}

aimed(specification, aims) if {
	count(aims) == 1
	not specification.CapacityReservationPreference
}

aimed(specification, aims) if {
	count(aims) == 0
	not specification.CapacityReservationTarget
	specification.CapacityReservationPreference in {"open", "none"}
}

reserved(data_of) if data_of.CapacityReservationSpecification.CapacityReservationTarget.CapacityReservationId

reserved(data_of) if data_of.CapacityReservationSpecification.CapacityReservationTarget.CapacityReservationResourceGroupArn

holder(group, name) := group.template if group.template != ""

holder(group, name) := name if group.template == ""
