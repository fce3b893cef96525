package eagleray.policy

import rego.v1

# METADATA
# title: bucket-encryption
# description: >-
#   What a training reads and writes is encrypted by what the template says, not by a default of the day
# related_resources:
# - ref: S3 user guide, bucket-encryption
violation contains v if {
	some name, bucket in of_type("AWS::S3::Bucket")
	rules := [one |
		some one in bucket.BucketEncryption.ServerSideEncryptionConfiguration
		one.ServerSideEncryptionByDefault.SSEAlgorithm in {"AES256", "aws:kms", "aws:kms:dsse"}
	]
	count(rules) == 0
	v := make_diag_at("bucket-encryption", "ERROR", name, "Properties.BucketEncryption",
		"the bucket's encryption is not set; use BucketEncryption.S3_MANAGED, or a key")
}

# METADATA
# title: bucket-public
# description: >-
#   No later policy or ACL may open a bucket of checkpoints and data to the world
# related_resources:
# - ref: S3 user guide, access-control-block-public-access
violation contains v if {
	some name, bucket in of_type("AWS::S3::Bucket")
	some field in ["BlockPublicAcls", "BlockPublicPolicy", "IgnorePublicAcls", "RestrictPublicBuckets"]
	not yes(object.get(object.get(bucket, "PublicAccessBlockConfiguration", {}), field, ""))
	v := make_diag_at("bucket-public", "ERROR", name, sprintf("Properties.PublicAccessBlockConfiguration.%s", [field]),
		"the bucket can be made public; use BlockPublicAccess.BLOCK_ALL")
}

# METADATA
# title: wildcard-action
# description: >-
#   A role that may do everything with a service may also do what nobody thought of, such as passing a role on
# related_resources:
# - ref: IAM user guide, best-practices
violation contains v if {
	some policy in policies
	some statement in listed(object.get(policy.document, "Statement", []))
	statement.Effect == "Allow"
	some action in listed(object.get(statement, "Action", []))
	regex.match(`^([a-z0-9-]+:)?\*$`, action)
	v := make_diag_at("wildcard-action", "ERROR", policy.name, policy.path,
		sprintf("allows %s; name the actions that are used", [action]))
}

violation contains v if {
	some policy in policies
	some statement in listed(object.get(policy.document, "Statement", []))
	statement.Effect == "Allow"
	statement.NotAction
	v := make_diag_at("wildcard-action", "ERROR", policy.name, policy.path,
		"allows everything but what NotAction names; name the actions that are used")
}

# METADATA
# title: open-ingress
# description: >-
#   Nothing of a training listens to the internet; Ray's dashboard runs code for whoever reaches it
# related_resources:
# - ref: Ray documentation, security
violation contains v if {
	some name, rule in of_type("AWS::EC2::SecurityGroupIngress")
	open_to_all(rule)
	v := make_diag_at("open-ingress", "ERROR", name, "Properties", "lets the whole internet in; name a security group or a range")
}

violation contains v if {
	some name, group in of_type("AWS::EC2::SecurityGroup")
	some i, rule in object.get(group, "SecurityGroupIngress", [])
	open_to_all(rule)
	v := make_diag_at("open-ingress", "ERROR", name, sprintf("Properties.SecurityGroupIngress.%d", [i]),
		"lets the whole internet in; name a security group or a range")
}

open_to_all(rule) if rule.CidrIp == "0.0.0.0/0"

open_to_all(rule) if rule.CidrIpv6 == "::/0"

policies contains {"name": name, "path": "Properties.PolicyDocument", "document": policy.PolicyDocument} if {
	some kind in ["AWS::IAM::Policy", "AWS::IAM::ManagedPolicy"]
	some name, policy in of_type(kind)
}

policies contains {"name": name, "path": sprintf("Properties.Policies.%d.PolicyDocument", [i]), "document": inline.PolicyDocument} if {
	some kind in ["AWS::IAM::Role", "AWS::IAM::User", "AWS::IAM::Group"]
	some name, role in of_type(kind)
	some i, inline in object.get(role, "Policies", [])
}
