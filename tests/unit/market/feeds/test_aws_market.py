"""AWS prices and scores from recorded answers; and prices from moto."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from duetune.errors import FleetError, InvalidInput
from duetune.market.feeds.aws_market import AwsMarket, believed_gpus, ec2_client
from support.places import ASSETS

pytest.importorskip("boto3")

from botocore.exceptions import (
    ClientError,
    EndpointConnectionError,
    NoCredentialsError,
)

TEN = datetime(2026, 11, 1, 10, tzinfo=UTC).timestamp()


def answer(name):
    return json.loads((ASSETS / "feeds" / name).read_text())


class Ec2:
    """Answers as recorded; ``fails`` is raised instead."""

    def __init__(self, fails=None, **others):
        self.fails, self.others, self.asked = fails, others, []

    def __getattr__(self, name):
        files = {
            "describe_spot_price_history": "spot-price-history.json",
            "get_spot_placement_scores": "placement-scores.json",
            "describe_availability_zones": "availability-zones.json",
        }

        def call(**asked):
            self.asked.append((name, asked))
            if self.fails is not None and name not in self.others:
                raise self.fails
            told = self.others.get(name) or answer(files[name])
            zone = asked.get("AvailabilityZone")
            if zone is not None:
                rows = [
                    each for each in told["SpotPriceHistory"] if each["AvailabilityZone"] == zone
                ]
                told = {"SpotPriceHistory": rows}
            return told

        return call


def market(client=None, **how):
    return AwsMarket("us-east-1", "p4d.24xlarge", 4.1, client=client or Ec2(), **how)


def test_prices_are_per_gpu_and_those_in_force_when_a_slot_begins():
    past = market(zone="us-east-1a").past(TEN - 1800, 5, 1800.0)
    assert past[0] is None, "before the first change nothing is known"
    assert [quote.spot_usd_gpu_h for quote in past[1:]] == [1.0, 1.0, 1.0, 2.0]
    assert past[1].on_demand_usd_gpu_h == 4.1
    later = market(zone="us-east-1a").past(TEN + 3600, 2, 1800.0)
    assert [quote.spot_usd_gpu_h for quote in later] == [1.0, 2.0]


def test_without_a_zone_the_cheapest_zone_counts():
    quotes = market().past(TEN, 4, 1800.0)
    assert [quote.spot_usd_gpu_h for quote in quotes] == [1.0, 1.0, 1.0, 1.5]
    assert market().pool.name == "p4d.24xlarge/us-east-1"
    assert market(zone="us-east-1a").pool.accelerator == "A100"


def test_without_scores_nothing_is_known_of_capacity():
    assert market().quote(TEN).available is None


def test_a_score_becomes_a_belief():
    client = Ec2()
    assert market(client, most_gpus=16).quote(TEN).available == 11, "7 in the region"
    asked = dict(client.asked)["get_spot_placement_scores"]
    assert asked["TargetCapacity"] == 2
    assert asked["SingleAvailabilityZone"] is False
    assert market(most_gpus=16, zone="us-east-1a").quote(TEN).available == 16, "az4 has 10"
    assert market(most_gpus=16, zone="us-east-1b").quote(TEN).available == 5, "az1 has 4"
    assert [believed_gpus(score, 9) for score in (1, 2, 9, 10)] == [0, 1, 8, 9]


def test_scores_that_fail_leave_the_price(caplog):
    prices = {"describe_spot_price_history": answer("spot-price-history.json")}
    client = Ec2(EndpointConnectionError(endpoint_url="x"), **prices)
    quote = market(client, most_gpus=8).quote(TEN + 3 * 3600)
    assert (quote.spot_usd_gpu_h, quote.available) == (1.5, None)
    assert "no placement score" in caplog.text


def test_scores_are_asked_for_types_alike():
    client = Ec2(describe_spot_price_history=answer("spot-price-history.json"))
    AwsMarket("us-east-1", "g5.2xlarge", 1.2, most_gpus=4, client=client).quote(TEN)
    types = dict(client.asked)["get_spot_placement_scores"]["InstanceTypes"]
    assert types[0] == "g5.2xlarge"
    assert "g5.xlarge" in types
    assert len(types) >= 3


def refused(code):
    return ClientError({"Error": {"Code": code, "Message": "key AKIASECRET of 1234"}}, "call")


@pytest.mark.parametrize(
    ("problem", "kind", "words"),
    [
        (NoCredentialsError(), FleetError, "no credentials"),
        (refused("ExpiredToken"), FleetError, "have expired"),
        (refused("UnauthorizedOperation"), FleetError, "ec2:DescribeSpotPriceHistory"),
        (refused("RequestLimitExceeded"), FleetError, "RequestLimitExceeded"),
        (refused("InvalidParameterValue"), InvalidInput, "p4d.24xlarge in us-east-1"),
        (EndpointConnectionError(endpoint_url="https://x"), FleetError, "does not answer"),
    ],
)
def test_what_aws_refuses_is_one_line_without_secrets(problem, kind, words):
    with pytest.raises(kind, match=words) as caught:
        market(Ec2(problem)).quote(TEN)
    assert "AKIASECRET" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_retry_helps_where_aws_is_away_only():
    for problem, retry in ((NoCredentialsError(), False), (refused("Unavailable"), True)):
        with pytest.raises(FleetError) as caught:
            market(Ec2(problem)).quote(TEN)
        assert caught.value.retry is retry


def test_a_type_without_a_price_and_a_wrong_region_are_refused():
    with pytest.raises(InvalidInput, match="sells as spot in us-east-1"):
        market(Ec2(describe_spot_price_history={"SpotPriceHistory": []})).quote(TEN)
    with pytest.raises(InvalidInput, match=r"'us-esat-1'.*us-east-1"):
        ec2_client("us-esat-1")
    strange = {"SpotPriceHistory": [{"AvailabilityZone": 1}]}
    with pytest.raises(FleetError, match="a form that is not known"):
        market(Ec2(describe_spot_price_history=strange)).quote(TEN)
    with pytest.raises(InvalidInput, match="zone of the AWS feed: 'us-east-1q'"):
        market(
            most_gpus=8,
            zone="us-east-1q",
            client=Ec2(
                describe_spot_price_history={
                    "SpotPriceHistory": [
                        {
                            "AvailabilityZone": "us-east-1q",
                            "SpotPrice": "1",
                            "Timestamp": "2026-11-01T00:00:00Z",
                        }
                    ]
                }
            ),
        ).quote(TEN)


@pytest.mark.more
@pytest.mark.filterwarnings("ignore")
def test_prices_of_a_moto_account(monkeypatch):
    moto = pytest.importorskip("moto")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    with moto.mock_aws():
        source = AwsMarket("us-east-1", "p4d.24xlarge", 4.1)
        quote = source.quote(TEN)
        assert quote.spot_usd_gpu_h > 0
        assert quote.available is None
