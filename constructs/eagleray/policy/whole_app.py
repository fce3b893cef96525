"""An app's templates as one: rules must see a security group and the interface in it, wherever each is."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

# What the rules look at. Everything else only costs the engine time.
_KINDS = {
    "AWS::EC2::LaunchTemplate", "AWS::EC2::PlacementGroup", "AWS::EC2::SecurityGroup",
    "AWS::EC2::SecurityGroupEgress", "AWS::EC2::SecurityGroupIngress", "AWS::EC2::Subnet",
    "AWS::EKS::Cluster", "AWS::EKS::Nodegroup", "AWS::S3::Bucket",
    "AWS::IAM::Group", "AWS::IAM::ManagedPolicy", "AWS::IAM::Policy", "AWS::IAM::Role", "AWS::IAM::User",
}
# Tells the rules that they look at all of an app.
_MARK = {"WholeApp": {"Type": "AWS::CloudFormation::WaitConditionHandle"}}
_GONE = object()


@dataclass(frozen=True)
class StackTemplate:
    """A stack's synthesized template, the file that it lies in, and the construct path of the stack."""

    path: str
    file: str
    body: dict[str, Any]


class WholeApp:
    """The templates of an app, joined: logical ids are made unique, and references are texts that name them."""

    def __init__(self, stacks: Sequence[StackTemplate]) -> None:
        self._stacks = stacks
        self._home: dict[str, tuple[StackTemplate, str]] = {}
        for i, stack in enumerate(stacks):
            for logical_id in stack.body.get("Resources", {}):
                self._home[f"S{i}{logical_id}"] = (stack, logical_id)

    @cached_property
    def template(self) -> dict[str, Any]:
        """One template with the resources that rules look at."""
        joined: dict[str, Any] = dict(_MARK)
        for i, stack in enumerate(self._stacks):
            for logical_id, resource in stack.body.get("Resources", {}).items():
                if resource["Type"] in _KINDS:
                    properties = self._plain(resource.get("Properties", {}), i)
                    joined[f"S{i}{logical_id}"] = {"Type": resource["Type"], "Properties": properties}
        return {"Resources": joined}

    def origin(self, joined_id: str) -> tuple[StackTemplate, str, str]:
        """Of a resource of the joined template: its stack's template, its logical id, its construct path."""
        stack, logical_id = self._home[joined_id]
        metadata = stack.body["Resources"][logical_id].get("Metadata", {})
        construct = metadata.get("aws:cdk:path", f"{stack.path}/{logical_id}")
        return stack, logical_id, construct.removesuffix("/Resource")

    @cached_property
    def _exports(self) -> dict[str, tuple[int, Any]]:
        """Value by the name of its export, and by stack and output (what a weak reference goes by)."""
        found = {}
        for i, stack in enumerate(self._stacks):
            for name, output in stack.body.get("Outputs", {}).items():
                found[f"{stack.path} {name}"] = (i, output["Value"])
                if isinstance(exported := output.get("Export", {}).get("Name"), str):
                    found[exported] = (i, output["Value"])
        return found

    def _plain(self, value: Any, stack: int) -> Any:
        if isinstance(value, list):
            return [below for one in value if (below := self._plain(one, stack)) is not _GONE]
        if not isinstance(value, dict):
            return value
        if len(value) == 1:
            (function, argument), = value.items()
            if function == "Ref" or function.startswith("Fn::"):
                return self._text(function, argument, stack)
        return {key: below for key, one in value.items() if (below := self._plain(one, stack)) is not _GONE}

    def _text(self, function: str, argument: Any, stack: int) -> Any:
        """What a function of CloudFormation stands for, `${…}` where only AWS knows."""
        match function, argument:
            case "Ref", "AWS::NoValue":
                return _GONE
            case "Ref", str(name):
                known = f"S{stack}{name}" in self._home
                return f"${{S{stack}{name}}}" if known else f"${{parameter {name}}}"
            case "Fn::GetAtt", [str(name), str(attribute)]:
                return self._attribute(f"S{stack}{name}", attribute)
            case "Fn::GetAtt", str(dotted):
                return self._attribute(*f"S{stack}{dotted}".split(".", 1))
            case "Fn::ImportValue", str(name) if name in self._exports:
                there, value = self._exports[name]
                return self._plain(value, there)
            case "Fn::Base64", _:
                return self._plain(argument, stack)
            case "Fn::Join", [str(separator), list(parts)]:
                return separator.join(str(self._plain(part, stack)) for part in parts)
        return f"${{import {function} {json.dumps(argument, sort_keys=True)}}}"

    def _attribute(self, joined_id: str, attribute: str) -> str:
        stack, logical_id = self._home.get(joined_id, (None, ""))
        kind = stack.body["Resources"][logical_id]["Type"] if stack else ""
        # Two names for one thing.
        same = kind == "AWS::EC2::SecurityGroup" and attribute == "GroupId"
        same = same or (kind == "AWS::EC2::Subnet" and attribute == "SubnetId")
        return f"${{{joined_id}}}" if same else f"${{{joined_id}.{attribute}}}"
