package eagleray.policy

import rego.v1

# METADATA
# title: node-metadata
# description: >-
#   A pod that reaches the node's metadata service has the node's role. IMDSv2 with one hop keeps pods away; what
#   needs the service runs on the host's network, and Pod Identity, which gives pods their credentials, is not part of it
# related_resources:
# - ref: EKS best practices, security, restrict access to the instance profile
violation contains v if {
	some name, group in nodegroups
	group.template == ""
	v := make_diag_at("node-metadata", "ERROR", name, "Properties.LaunchTemplate",
		"no launch template of this app, and EKS's own lets pods reach the node's role; use one with node_only_metadata()")
}

violation contains v if {
	some group in nodegroups
	group.template != ""
	some field, wanted in {"HttpTokens": "required", "HttpPutResponseHopLimit": "1"}
	found := object.get(object.get(group.data, "MetadataOptions", {}), field, "not set")
	sprintf("%v", [found]) != wanted
	v := make_diag_at("node-metadata", "ERROR", group.template, sprintf("Properties.LaunchTemplateData.MetadataOptions.%s", [field]),
		sprintf("%v, with which pods reach the node's role; use %s", [found, wanted]))
}

violation contains v if {
	some group in nodegroups
	found := object.get(object.get(group.data, "MetadataOptions", {}), "HttpEndpoint", "enabled")
	found != "enabled"
	v := make_diag_at("node-metadata", "ERROR", group.template, "Properties.LaunchTemplateData.MetadataOptions.HttpEndpoint",
		sprintf("%v, without which a node cannot join its cluster; use enabled", [found]))
}

# METADATA
# title: node-volumes
# description: >-
#   Checkpoints, data and the pods' secrets lie on the nodes' volumes: they are encrypted, and go with their node
# related_resources:
# - ref: EC2 user guide, launch-template-ebs-encryption; AL2023's root device is /dev/xvda
violation contains v if {
	some group in nodegroups
	group.template != ""
	roots := [mapping |
		some mapping in object.get(group.data, "BlockDeviceMappings", [])
		mapping.DeviceName == "/dev/xvda"
	]
	count(roots) != 1
	v := make_diag_at("node-volumes", "ERROR", group.template, "Properties.LaunchTemplateData.BlockDeviceMappings",
		"nothing is said of the root volume /dev/xvda, which then is as the image has it; map it, encrypted")
}

violation contains v if {
	some group in nodegroups
	some i, mapping in object.get(group.data, "BlockDeviceMappings", [])
	not yes(object.get(object.get(mapping, "Ebs", {}), "Encrypted", ""))
	v := make_diag_at("node-volumes", "ERROR", group.template, volume(i, "Encrypted"), "a volume in clear; set it to true")
}

violation contains v if {
	some group in nodegroups
	some i, mapping in object.get(group.data, "BlockDeviceMappings", [])
	not yes(object.get(object.get(mapping, "Ebs", {}), "DeleteOnTermination", "true"))
	v := make_diag_at("node-volumes", "ERROR", group.template, volume(i, "DeleteOnTermination"),
		"every node that goes leaves a volume that costs; set it to true")
}

violation contains v if {
	some group in nodegroups
	some i, interface in group.interfaces
	not yes(object.get(interface, "DeleteOnTermination", "true"))
	v := make_diag_at("node-volumes", "ERROR", group.template,
		sprintf("Properties.LaunchTemplateData.NetworkInterfaces.%d.DeleteOnTermination", [i]),
		"every node that goes leaves an interface that holds an address; set it to true")
}

# METADATA
# title: volume-speed
# description: >-
#   gp3 gives a MiB/s for four IOPS, and parallel unpacking of images makes pulls slower on a root volume below 600 MiB/s
# related_resources:
# - ref: EBS user guide, general-purpose; awslabs/amazon-eks-ami, nodeadm/doc/examples.md
violation contains v if {
	some group in nodegroups
	some i, mapping in object.get(group.data, "BlockDeviceMappings", [])
	ebs := object.get(mapping, "Ebs", {})
	found := object.get(ebs, "VolumeType", "not set")
	not found in {"gp3", "io1", "io2"}
	v := make_diag_at("volume-speed", "ERROR", group.template, volume(i, "VolumeType"),
		sprintf("%v, too slow for images of ten and more GiB; use gp3", [found]))
}

violation contains v if {
	some group in nodegroups
	some i, mapping in object.get(group.data, "BlockDeviceMappings", [])
	ebs := object.get(mapping, "Ebs", {})
	object.get(ebs, "VolumeType", "") == "gp3"
	mib := object.get(ebs, "Throughput", 125)
	iops := object.get(ebs, "Iops", 3000)
	not gp3_gives(mib, iops)
	v := make_diag_at("volume-speed", "ERROR", group.template, volume(i, "Throughput"), sprintf(
		"gp3 does not give %v MiB/s for %v IOPS; use 125 to 1000, and four times as many IOPS", [mib, iops],
	))
}

violation contains v if {
	some group in nodegroups
	contains(object.get(group.data, "UserData", ""), "FastImagePull: true")
	some i, mapping in object.get(group.data, "BlockDeviceMappings", [])
	mapping.DeviceName == "/dev/xvda"
	object.get(object.get(mapping, "Ebs", {}), "Throughput", 125) < 600
	v := make_diag_at("volume-speed", "ERROR", group.template, volume(i, "Throughput"),
		"too slow for the FastImagePull of the user data; use fast_root_volume(), or leave fast_image_pull() out")
}

gp3_gives(mib, iops) if {
	mib >= 125
	mib <= 1000
	mib * 4 <= iops
	iops <= 16000
}

volume(i, field) := sprintf("Properties.LaunchTemplateData.BlockDeviceMappings.%d.Ebs.%s", [i, field])
