# What the rules look at: the resources of a whole app, joined. Every value that is a reference is the text
# "${logical id}" or "${logical id.attribute}" by now (eagleray/policy/whole_app.py).
package eagleray.policy

import rego.v1

# Properties by logical id, of one type. Nothing where a single template is looked at: a rule that judged one
# without the others would miss what lies in them.
of_type(kind) := {name: object.get(resource, "properties", {}) |
	input.resources.WholeApp
	some name, resource in input.resources
	resource.resourceType == kind
}

ref(name) := sprintf("${%s}", [name])

# What is known only in AWS: a parameter, an import, a value that a condition chooses.
unknown(value) if startswith(value, "${")

# CloudFormation takes "true" for true.
yes(value) if sprintf("%v", [value]) == "true"

# A list of one may be written without the list.
listed(value) := value if is_array(value)

listed(value) := [value] if not is_array(value)

template_of(nodegroup) := name if {
	some name, _ in of_type("AWS::EC2::LaunchTemplate")
	nodegroup.LaunchTemplate.Id == ref(name)
} else := ""

template_data(name) := object.get(object.get(of_type("AWS::EC2::LaunchTemplate"), name, {}), "LaunchTemplateData", {})

# Managed nodegroups, each with its launch template ("" where that is not of this app) and instance types.
nodegroups[name] := found if {
	some name, properties in of_type("AWS::EKS::Nodegroup")
	template := template_of(properties)
	data_of := template_data(template)
	found := {
		"properties": properties,
		"template": template,
		"data": data_of,
		"interfaces": object.get(data_of, "NetworkInterfaces", []),
		"types": {type |
			some type in array.concat(object.get(properties, "InstanceTypes", []), [object.get(data_of, "InstanceType", "")])
			type != ""
		},
	}
}

# Those of a type that has GPUs and EFA.
efa_nodegroups[name] := object.union(group, {"type": type, "facts": instance_types[type]}) if {
	some name, group in nodegroups
	type := min({one |
		some one in group.types
		instance_types[one].gpus > 0
		instance_types[one].efa > 0
	})
}

is_efa(interface) if object.get(interface, "InterfaceType", "interface") in {"efa", "efa-only"}
