package eagleray.policy

import rego.v1

# METADATA
# title: template-fields
# description: >-
#   EKS refuses a nodegroup whose template sets what the nodegroup itself decides, in the last minutes of a
#   deployment
# related_resources:
# - ref: EKS user guide, launch-templates
violation contains v if {
	some group in nodegroups
	some field, instead in refused
	group.data[field]
	v := make_diag_at("template-fields", "ERROR", group.template, sprintf("Properties.LaunchTemplateData.%s", [field]),
		sprintf("EKS refuses this field in a nodegroup's template; %s", [instead]))
}

violation contains v if {
	some group in nodegroups
	some i, interface in group.interfaces
	some field, instead in refused_of_interfaces
	object.get(interface, field, "not set") != "not set"
	v := make_diag_at("template-fields", "ERROR", group.template,
		sprintf("Properties.LaunchTemplateData.NetworkInterfaces.%d.%s", [i, field]),
		sprintf("a nodegroup's template may not have it; %s", [instead]))
}

violation contains v if {
	some group in nodegroups
	count(group.interfaces) > 0
	some field in ["SecurityGroupIds", "SecurityGroups"]
	group.data[field]
	v := make_diag_at("template-fields", "ERROR", group.template, sprintf("Properties.LaunchTemplateData.%s", [field]),
		"EC2 refuses security groups beside NetworkInterfaces; name them in each interface's Groups")
}

violation contains v if {
	some name, group in nodegroups
	object.get(group.properties, "LaunchTemplate", "none") != "none"
	some field in ["DiskSize", "RemoteAccess"]
	object.get(group.properties, field, "not set") != "not set"
	v := make_diag_at("template-fields", "ERROR", name, sprintf("Properties.%s", [field]),
		"EKS refuses it beside a launch template; set it there")
}

violation contains v if {
	some group in nodegroups
	group.data.ImageId
	object.get(group.properties, "AmiType", "CUSTOM") != "CUSTOM"
	v := make_diag_at("template-fields", "ERROR", group.template, "Properties.LaunchTemplateData.ImageId",
		sprintf("an image beside the nodegroup's AmiType %s; leave one of them out", [group.properties.AmiType]))
}

violation contains v if {
	some group in nodegroups
	some i, tags in object.get(group.data, "TagSpecifications", [])
	found := object.get(tags, "ResourceType", "not set")
	not found in {"instance", "volume", "network-interface", "elastic-gpu", "spot-instances-request"}
	v := make_diag_at("template-fields", "ERROR", group.template,
		sprintf("Properties.LaunchTemplateData.TagSpecifications.%d.ResourceType", [i]),
		sprintf("%v is nothing that EC2 tags at launch; use instance, volume or network-interface", [found]))
}

# METADATA
# title: instance-type
# description: >-
#   EKS takes the instance type from one place only; nodes that share a job over EFA are all of one type, and their
#   image needs NVIDIA's driver
# related_resources:
# - ref: EKS user guide, launch-templates and ml-eks-optimized-ami
violation contains v if {
	some name, group in nodegroups
	group.data.InstanceType
	count(object.get(group.properties, "InstanceTypes", [])) > 0
	v := make_diag_at("instance-type", "ERROR", name, "Properties.InstanceTypes",
		"the template names an instance type too, and EKS refuses both; leave one of them out")
}

violation contains v if {
	some name, group in nodegroups
	count(group.types) == 0
	v := make_diag_at("instance-type", "ERROR", name, "Properties.InstanceTypes",
		"no instance type, and EKS would take t3.medium; name one")
}

violation contains v if {
	some name, group in efa_nodegroups
	count(group.types) > 1
	v := make_diag_at("instance-type", "ERROR", name, "Properties.InstanceTypes",
		"several instance types, whose nodes differ in GPUs and EFA; name one")
}

violation contains v if {
	some name, group in efa_nodegroups
	image := object.get(group.properties, "AmiType", "not set")
	image != "CUSTOM"
	not image in {"AL2023_x86_64_NVIDIA", "BOTTLEROCKET_x86_64_NVIDIA", "BOTTLEROCKET_x86_64_NVIDIA_FIPS"}
	v := make_diag_at("instance-type", "ERROR", name, "Properties.AmiType",
		sprintf("%v, which has no driver for the GPUs of %s; use AL2023_x86_64_NVIDIA", [image, group.type]))
}

violation contains v if {
	some name, group in nodegroups
	image := object.get(group.properties, "AmiType", "AL2023_x86_64_STANDARD")
	not unknown(image)
	not startswith(image, "AL2023_")
	not startswith(image, "BOTTLEROCKET_")
	not startswith(image, "WINDOWS_")
	not image in {"CUSTOM", "AL2023_x86_64_NEURON"}
	v := make_diag_at("instance-type", "ERROR", name, "Properties.AmiType",
		sprintf("%v is no image that EKS still offers; use AL2023_x86_64_STANDARD or AL2023_x86_64_NVIDIA", [image]))
}

# METADATA
# title: gpu-nodes
# description: >-
#   NVIDIA's device plugin starts on nodes with the label nvidia.com/gpu.present=true only, which the image does not
#   set; without the taint every other pod lands on the dear nodes
# related_resources:
# - ref: NVIDIA/k8s-device-plugin, issues 708 and 607
violation contains v if {
	some name, group in efa_nodegroups
	labels := object.get(group.properties, "Labels", {})
	not yes(object.get(labels, "nvidia.com/gpu.present", ""))
	v := make_diag_at("gpu-nodes", "ERROR", name, "Properties.Labels",
		"no label for NVIDIA's device plugin, so nobody would see the GPUs; set nvidia.com/gpu.present to \"true\"")
}

violation contains v if {
	some name, group in efa_nodegroups
	taints := [taint |
		some taint in object.get(group.properties, "Taints", [])
		taint.Key == "nvidia.com/gpu"
		taint.Effect == "NO_SCHEDULE"
	]
	count(taints) == 0
	v := make_diag_at("gpu-nodes", "ERROR", name, "Properties.Taints",
		"any pod may land on the GPU nodes; taint them with nvidia.com/gpu, effect NO_SCHEDULE")
}

# METADATA
# title: nodegroup-size
# description: >-
#   EKS refuses sizes that contradict each other; and GPUs that a quota or reservation has not got twice are
#   replaced in place
# related_resources:
# - ref: EKS API reference, NodegroupScalingConfig and NodegroupUpdateConfig
violation contains v if {
	some name, group in nodegroups
	sizes := object.get(group.properties, "ScalingConfig", {})
	not rising(sizes)
	v := make_diag_at("nodegroup-size", "ERROR", name, "Properties.ScalingConfig",
		"needs MinSize, DesiredSize and MaxSize, none less than the one before, and MaxSize 1 or more")
}

violation contains v if {
	some name, group in efa_nodegroups
	update := object.get(group.properties, "UpdateConfig", {})
	object.get(update, "UpdateStrategy", "DEFAULT") != "MINIMAL"
	v := make_diag_at("nodegroup-size", "ERROR", name, "Properties.UpdateConfig.UpdateStrategy",
		"an update would start new GPU nodes before old ones go, and wait for capacity; use MINIMAL")
}

rising(sizes) if {
	sizes.MinSize <= sizes.DesiredSize
	sizes.DesiredSize <= sizes.MaxSize
	sizes.MaxSize > 0
}

# METADATA
# title: template-version
# description: >-
#   A nodegroup keeps the template's version that it names; with none it takes the first one, and no change
#   arrives
# related_resources:
# - ref: EKS user guide, launch-templates
violation contains v if {
	some name, group in nodegroups
	group.template != ""
	version := object.get(group.properties.LaunchTemplate, "Version", "not set")
	version != sprintf("${%s.LatestVersionNumber}", [trim_suffix(trim_prefix(ref(group.template), "${"), "}")])
	v := make_diag_at("template-version", "ERROR", name, "Properties.LaunchTemplate.Version",
		"not the template's newest version; use attr_latest_version_number")
}

# Field by what to do instead. A market is looked at by the rule for Capacity Blocks.
refused := {
	"IamInstanceProfile": "set the nodegroup's node_role",
	"InstanceInitiatedShutdownBehavior": "leave it out",
	"HibernationOptions": "leave it out: nodes are replaced, not suspended",
	"RamDiskId": "leave it out",
	"KernelId": "leave it out",
	"EnclaveOptions": "leave it out",
	"DisableApiTermination": "leave it out: EKS ends nodes when it updates or repairs them",
	"DisableApiStop": "leave it out: EKS ends nodes when it updates or repairs them",
}

refused_of_interfaces := {
	"SubnetId": "set the nodegroup's subnets",
	"NetworkInterfaceId": "leave it out: every node needs interfaces of its own",
	"AssociatePublicIpAddress": "leave it out: EC2 refuses it where there are several interfaces, and the subnet decides",
	"PrivateIpAddress": "leave it out: every node needs an address of its own",
}
