"""The Workflows port on Step Functions (standard workflows)."""

import json
from collections.abc import Mapping
from typing import Any

from botocore.exceptions import ClientError

from planaria.aws.errors import code_of, translated
from planaria.core.errors import PlanariaError
from planaria.core.ports import Execution

_NO_LONGER = {"TaskDoesNotExist", "TaskTimedOut", "InvalidToken"}


class StepFunctions:
    """client: a boto3 stepfunctions client; machines: our name of a machine -> its ARN."""

    def __init__(self, client: Any, machines: Mapping[str, str]) -> None:
        self._client = client
        self._machines = machines

    def start(self, machine: str, name: str, document: Mapping[str, Any]) -> tuple[str, Execution]:
        """StartExecution answers an equal running execution as success and anything else under that name
        with ExecutionAlreadyExists, which can mean "runs with another input" as well as "has ended":
        DescribeExecution tells. https://docs.aws.amazon.com/step-functions/latest/apireference/API_StartExecution.html
        """
        arn = self._machines[machine]
        text = json.dumps(document, sort_keys=True)
        try:
            with translated():
                answer = self._client.start_execution(stateMachineArn=arn, name=name, input=text)
            return str(answer["executionArn"]), Execution.RUNNING
        except PlanariaError as error:
            if _code(error) != "ExecutionAlreadyExists":
                raise
        execution = f"{arn.replace(':stateMachine:', ':execution:')}:{name}"
        return execution, self.state(execution)

    def state(self, execution_arn: str) -> Execution:
        try:
            with translated():
                return Execution(self._client.describe_execution(executionArn=execution_arn)["status"])
        except PlanariaError as error:
            if _code(error) in ("ExecutionDoesNotExist", "InvalidArn"):
                return Execution.NONE
            raise
        except ValueError:
            return Execution.RUNNING  # PENDING_REDRIVE and whatever comes later: not ended

    def stop(self, execution_arn: str, reason: str) -> None:
        try:
            with translated():
                self._client.stop_execution(executionArn=execution_arn, cause=reason[:256])
        except PlanariaError as error:
            if _code(error) != "ExecutionDoesNotExist":
                raise

    def answer(self, task_token: str, output: Mapping[str, Any]) -> bool:
        """SendTaskSuccess; False when nobody waits for this token any more."""
        try:
            with translated():
                self._client.send_task_success(taskToken=task_token, output=json.dumps(output))
        except PlanariaError as error:
            if _code(error) in _NO_LONGER:
                return False
            raise
        return True


def _code(error: PlanariaError) -> str:
    return code_of(error.__cause__) if isinstance(error.__cause__, ClientError) else ""
