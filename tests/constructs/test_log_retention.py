"""Days of a setting against the periods that CloudWatch Logs offers."""

import pytest
from aws_cdk.aws_logs import RetentionDays

from eagleray.log_retention import keep_days


@pytest.mark.parametrize(("days", "kept"), [
    (1, RetentionDays.ONE_DAY), (2, RetentionDays.THREE_DAYS), (30, RetentionDays.ONE_MONTH),
    (31, RetentionDays.TWO_MONTHS), (3653, RetentionDays.TEN_YEARS), (3654, RetentionDays.INFINITE),
])
def test_logs_are_kept_at_least_as_long_as_asked(days, kept):
    assert keep_days(days) == kept
