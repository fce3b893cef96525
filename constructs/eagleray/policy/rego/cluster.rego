package eagleray.policy

import rego.v1

# METADATA
# title: api-endpoint
# description: >-
#   The API of a cluster is open to the internet unless it is said otherwise, and so is a public one without address
#   ranges, or with wider ones than a /8; cdk-nag looks at clusters of the older module only
# related_resources:
# - ref: EKS user guide, cluster-endpoint
violation contains v if {
	some name, cluster in of_type("AWS::EKS::Cluster")
	network := object.get(cluster, "ResourcesVpcConfig", {})
	yes(object.get(network, "EndpointPublicAccess", "true"))
	ranges := object.get(network, "PublicAccessCidrs", ["0.0.0.0/0"])
	some range in ranges
	is_string(range)
	to_number(split(range, "/")[1]) < 8
	v := make_diag_at("api-endpoint", "ERROR", name, "Properties.ResourcesVpcConfig.PublicAccessCidrs",
		"the cluster's API is open to the world; name the addresses that may reach it, or set EndpointPublicAccess to false")
}

violation contains v if {
	some name, cluster in of_type("AWS::EKS::Cluster")
	network := object.get(cluster, "ResourcesVpcConfig", {})
	not yes(object.get(network, "EndpointPrivateAccess", "false"))
	v := make_diag_at("api-endpoint", "ERROR", name, "Properties.ResourcesVpcConfig.EndpointPrivateAccess",
		"nodes would reach the API over the internet, or not at all; set it to true")
}

# METADATA
# title: api-logs
# description: >-
#   Who did what to the cluster, and why a pod was not placed, is known from the control plane's logs only; EKS
#   keeps none by default
# related_resources:
# - ref: EKS user guide, control-plane-logs
violation contains v if {
	some name, cluster in of_type("AWS::EKS::Cluster")
	on := {kind.Type | some kind in cluster.Logging.ClusterLogging.EnabledTypes}
	missing := {"api", "audit", "authenticator", "controllerManager", "scheduler"} - on
	count(missing) > 0
	v := make_diag_at("api-logs", "ERROR", name, "Properties.Logging.ClusterLogging.EnabledTypes",
		sprintf("no logs of %s; add them", [concat(", ", sort(missing))]))
}

# METADATA
# title: api-encryption
# description: >-
#   From Kubernetes 1.28 on EKS encrypts all API data, secrets among them, with a key that AWS owns; before that
#   secrets lie in etcd as they are unless EncryptionConfig names a key
# related_resources:
# - ref: EKS user guide, envelope-encryption
violation contains v if {
	some name, cluster in of_type("AWS::EKS::Cluster")
	version := object.get(cluster, "Version", "1.36")
	to_number(split(version, ".")[1]) < 28
	not cluster.EncryptionConfig
	v := make_diag_at("api-encryption", "ERROR", name, "Properties.EncryptionConfig",
		sprintf("secrets of a cluster of version %s are not encrypted; name a key, or use 1.28 or later", [version]))
}

# METADATA
# title: api-access
# description: >-
#   The aws-auth ConfigMap lets whoever edits it be cluster-admin, and one slip locks all out; access entries are
#   in IAM's logs
# related_resources:
# - ref: EKS best practices, security, identity and access management
violation contains v if {
	some name, cluster in of_type("AWS::EKS::Cluster")
	found := object.get(object.get(cluster, "AccessConfig", {}), "AuthenticationMode", "CONFIG_MAP")
	found != "API"
	v := make_diag_at("api-access", "ERROR", name, "Properties.AccessConfig.AuthenticationMode",
		sprintf("%v reads the aws-auth ConfigMap; use API", [found]))
}
