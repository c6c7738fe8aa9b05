"""AWS as a market source: spot prices by ``describe_spot_price_history``, and placement scores.

A placement score is no count. AWS says how likely a request would succeed, from 1 to 10;
``believed_gpus`` turns that into a number to plan with. boto3 is optional (``duetune[aws]``).
"""

from __future__ import annotations

import difflib
import logging
import math
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Protocol, TypeVar, cast

import msgspec
import numpy as np

from duetune.core.market import Pool
from duetune.errors import FleetError, InvalidInput, MissingExtra
from duetune.market.feeds.live_feed import Quote
from duetune.market.instance_types import AWS_INSTANCES, aws_instance

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

PRODUCT = "Linux/UNIX"
HIGHEST_SCORE = 10
MOST_PAGES = 200
# The whole of a call, with its repetitions, must not keep a controller waiting for minutes.
TIMEOUTS_S = (3.0, 10.0)
ATTEMPTS = 3

_EXPIRED = {"ExpiredToken", "ExpiredTokenException", "RequestExpired"}
_DENIED = {
    "AuthFailure",
    "InvalidClientTokenId",
    "OptInRequired",
    "SignatureDoesNotMatch",
    "UnauthorizedOperation",
    "UnrecognizedClientException",
}
_WRONG = {"InvalidParameterValue", "InvalidParameterCombination", "InvalidInstanceType"}

log = logging.getLogger(__name__)

Answer = TypeVar("Answer")


class Ec2(Protocol):
    """The calls of boto3's EC2 client that are used here."""

    def describe_spot_price_history(self, **asked: object) -> Mapping[str, object]:
        """Return a page of price changes, newest first."""
        ...

    def get_spot_placement_scores(self, **asked: object) -> Mapping[str, object]:
        """Return the scores of regions or zones."""
        ...

    def describe_availability_zones(self, **asked: object) -> Mapping[str, object]:
        """Return the zones of the region with their ids."""
        ...


class _Change(msgspec.Struct):
    AvailabilityZone: str
    SpotPrice: str
    Timestamp: datetime


class _Prices(msgspec.Struct):
    SpotPriceHistory: list[_Change]
    NextToken: str = ""


class _Score(msgspec.Struct):
    Score: int
    Region: str = ""
    AvailabilityZoneId: str = ""


class _Scores(msgspec.Struct):
    SpotPlacementScores: list[_Score]


class _Zone(msgspec.Struct):
    ZoneName: str
    ZoneId: str


class _Zones(msgspec.Struct):
    AvailabilityZones: list[_Zone]


class AwsMarket:
    """The ``MarketSource`` of one instance type in a region, or in one zone of it.

    Without a zone the price is that of the cheapest zone. ``most_gpus`` is the capacity that
    placement scores are asked for; None asks for no scores.
    """

    def __init__(
        self,
        region: str,
        instance_type: str,
        on_demand_usd_gpu_h: float,
        *,
        zone: str | None = None,
        gpus_per_instance: int | None = None,
        most_gpus: int | None = None,
        client: Ec2 | None = None,
    ) -> None:
        has = aws_instance(instance_type, gpus_per_instance)
        self._region, self._type, self._zone = region, instance_type, zone
        self._gpus, self._on_demand, self._most_gpus = has.gpus, on_demand_usd_gpu_h, most_gpus
        place = zone or region
        self.pool = Pool(f"{instance_type}/{place}", has.accelerator, place)
        self._ec2 = client or ec2_client(region)
        self._zone_id: str | None = None

    def quote(self, began: float) -> Quote:
        """Return the price in force when the slot began, and what the score lets one believe."""
        told = self._changes(began, began)
        # The last change before the slot; a price that is told with a later time is one too.
        prices = [_in_force(series, np.array([began]), early=True)[0] for series in told.values()]
        if not prices:
            where = self._zone or self._region
            allowed = f"an instance type that AWS sells as spot in {where}; it tells no price"
            raise InvalidInput("instance type of the AWS feed", self._type, allowed)
        return Quote(float(min(prices)) / self._gpus, self._on_demand, self._believed())

    def past(self, first: float, slots: int, slot_s: float) -> Sequence[Quote | None]:
        """Return the prices in force when each slot began. AWS keeps 90 days."""
        begins = first + slot_s * np.arange(slots, dtype=np.float64)
        lowest = np.full(slots, np.nan)
        for series in self._changes(first, float(begins[-1])).values():
            lowest = np.fmin(lowest, _in_force(series, begins))
        prices = (lowest / self._gpus).tolist()
        return [None if math.isnan(each) else Quote(each, self._on_demand) for each in prices]

    def _changes(self, first: float, last: float) -> dict[str, dict[float, float]]:
        """Return the prices of each zone by time, in dollars per instance and hour."""
        asked: dict[str, object] = {
            "InstanceTypes": [self._type],
            "ProductDescriptions": [PRODUCT],
            "StartTime": datetime.fromtimestamp(first, UTC),
            "EndTime": datetime.fromtimestamp(last, UTC),
        }
        if self._zone is not None:
            asked["AvailabilityZone"] = self._zone
        series: dict[str, dict[float, float]] = {}
        for _ in range(MOST_PAGES):
            page = self._told(lambda: self._ec2.describe_spot_price_history(**asked), _Prices)
            for change in page.SpotPriceHistory:
                price = _price(change.SpotPrice)
                series.setdefault(change.AvailabilityZone, {})[change.Timestamp.timestamp()] = price
            if not page.NextToken:
                break
            asked["NextToken"] = page.NextToken
        return series

    def _believed(self) -> int | None:
        """Return the GPUs that the placement score lets one believe; None without a score."""
        if self._most_gpus is None:
            return None
        capacity = math.ceil(self._most_gpus / self._gpus)
        try:
            scores = self._told(
                lambda: self._ec2.get_spot_placement_scores(
                    InstanceTypes=_alike(self._type),
                    TargetCapacity=capacity,
                    RegionNames=[self._region],
                    SingleAvailabilityZone=self._zone is not None,
                ),
                _Scores,
            ).SpotPlacementScores
            zone_id = "" if self._zone is None else self._id_of_zone()
        except FleetError as error:
            log.warning("no placement score: %s", error)
            return None
        here = [
            each.Score
            for each in scores
            if each.Region == self._region and each.AvailabilityZoneId == zone_id
        ]
        # AWS lists the ten best places only: a place that is not among them has a low score.
        return believed_gpus(max(here, default=1), capacity * self._gpus)

    def _id_of_zone(self) -> str:
        """Return the id of the zone: scores name zones by ids, which are the same for everyone."""
        if self._zone_id is None:
            zones = self._told(self._ec2.describe_availability_zones, _Zones).AvailabilityZones
            known = {each.ZoneName: each.ZoneId for each in zones}
            if self._zone not in known:
                raise InvalidInput("zone of the AWS feed", self._zone, f"one of {sorted(known)}")
            self._zone_id = known[self._zone]
        return self._zone_id

    def _told(self, ask: Callable[[], Mapping[str, object]], shape: type[Answer]) -> Answer:
        """Return AWS's answer; what went wrong becomes one line without secrets."""
        from botocore.exceptions import (  # noqa: PLC0415  optional, and slow to import
            BotoCoreError,
            ClientError,
            NoCredentialsError,
            PartialCredentialsError,
        )
        from botocore.parsers import ResponseParserError  # noqa: PLC0415

        try:
            return msgspec.convert(ask(), shape)
        except (NoCredentialsError, PartialCredentialsError):
            words = (
                "AWS: no credentials; run `aws configure`, or set AWS_ACCESS_KEY_ID and "
                "AWS_SECRET_ACCESS_KEY"
            )
            raise FleetError(words, retry=False) from None
        except ClientError as error:
            raise self._refusal(str(error.response.get("Error", {}).get("Code", ""))) from None
        except (BotoCoreError, ResponseParserError) as error:
            raise FleetError(f"AWS does not answer: {type(error).__name__}") from None
        except msgspec.ValidationError as error:
            raise FleetError(f"AWS answers in a form that is not known: {error}") from None

    def _refusal(self, code: str) -> FleetError | InvalidInput:
        # The messages of AWS may hold account numbers and key ids, so only the code is shown.
        if code in _EXPIRED:
            return FleetError("AWS: the credentials have expired; renew them", retry=False)
        if code in _DENIED:
            words = (
                f"AWS refuses the credentials ({code}); the feed needs "
                "ec2:DescribeSpotPriceHistory, and for scores ec2:GetSpotPlacementScores and "
                "ec2:DescribeAvailabilityZones"
            )
            return FleetError(words, retry=False)
        if code in _WRONG:
            asked = f"{self._type} in {self._zone or self._region}"
            allowed = f"an instance type and a zone that AWS has ({code})"
            return InvalidInput("site.feed", asked, allowed)
        return FleetError(f"AWS refuses the call: {code or 'unknown error'}")


def ec2_client(region: str) -> Ec2:
    """Return boto3's EC2 client of a region, with short time-outs; called when a feed is made."""
    try:
        import boto3  # noqa: PLC0415  optional, and slow to import
        from botocore.config import Config  # noqa: PLC0415
        from botocore.exceptions import BotoCoreError  # noqa: PLC0415
    except ImportError:
        raise MissingExtra("the AWS feed", "aws") from None
    try:
        session = boto3.Session()
        known = [
            each
            for partition in session.get_available_partitions()
            for each in session.get_available_regions("ec2", partition)
        ]
        if region not in known:
            near = difflib.get_close_matches(region, known, n=3) or ("us-east-1", "eu-west-1")
            allowed = f"a region of AWS, such as {', '.join(near)}"
            raise InvalidInput("region of the AWS feed", region, allowed)
        connect_s, read_s = TIMEOUTS_S
        config = Config(
            connect_timeout=connect_s,
            read_timeout=read_s,
            retries={"total_max_attempts": ATTEMPTS, "mode": "standard"},
        )
        return cast("Ec2", session.client("ec2", region_name=region, config=config))
    except BotoCoreError as error:
        # An unknown profile, a broken configuration file.
        words = " ".join(str(error).split())
        raise InvalidInput("AWS settings", type(error).__name__, f"usable ones: {words}") from None


def believed_gpus(score: int, most_gpus: int) -> int:
    """Return the GPUs to plan with at a placement score: none at 1, all that were asked for at 10.

    In between the number rises evenly. This is our rule, not one of AWS, and it is not calibrated.
    """
    share = (min(max(score, 1), HIGHEST_SCORE) - 1) / (HIGHEST_SCORE - 1)
    return math.floor(most_gpus * share + 0.5)


def _alike(instance_type: str) -> list[str]:
    """Return the types with as many GPUs of the same kind, the given one first.

    AWS gives a low score to a request of fewer than three types, whatever the capacity is.
    """
    has = AWS_INSTANCES.get(instance_type)
    others = [name for name, each in AWS_INSTANCES.items() if each == has and name != instance_type]
    return [instance_type, *others]


def _in_force(
    series: Mapping[float, float], begins: NDArray[np.float64], *, early: bool = False
) -> NDArray[np.float64]:
    """Return the price in force at each moment; NaN before the first change.

    With ``early`` the first price counts before its change too.
    """
    times = np.array(sorted(series))
    prices = np.array([series[time] for time in times])
    place = np.searchsorted(times, begins, side="right") - 1
    found = prices[np.maximum(place, 0)]
    return found if early else np.where(place < 0, np.nan, found)


def _price(text: str) -> float:
    try:
        price = float(text)
    except ValueError:
        price = math.nan
    if not (math.isfinite(price) and price >= 0):
        raise FleetError(f"AWS tells a price that is no number: {text[:20]!r}")
    return price
