# -*- test-case-name: tests.unit.metrics.test_prometheus -*-
"""
The sensors of a server in Prometheus's text format.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from heapq import nlargest, nsmallest
from itertools import chain, islice
from types import MappingProxyType
from typing import Any

from attrs import define, field, frozen
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.samples import Sample

from ..interfaces import IHistogram
from .prometheusnames import COUNTER_SUFFIX, Naming, namingsOf
from .registry import Family, SensorRegistry

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

MAX_ROWS = 200
"""The maximum number of rows of a metric; the largest values are kept, or the smallest where these matter."""

MAX_LABEL_CHARACTERS = 128
"""Longer names of clients are truncated."""

ROWS_PER_TURN = 500
"""How many rows are read in a turn of the reactor."""

LEFT_OUT = "admission_left_out_rows"

_HEAD_WORD = "# HELP "
_HEAD = re.compile(f"^{_HEAD_WORD}", re.MULTILINE)
"""Where the rows of a metric begin; the texts in them have no ends of lines."""

_Row = tuple[float, Mapping[str, str]]

_KINDS: Mapping[str, Callable[..., Metric]] = {
    "gauge": GaugeMetricFamily,
    "counter": CounterMetricFamily,
    "histogram": HistogramMetricFamily,
}


@frozen
class _Source:
    """
    A sensor of a metric.

    @ivar name: the sensor's.
    @ivar labels: the labels that the sensor's name contains.
    @ivar sensor: the value of a gauge or counter, or else the sensor itself.
    """

    name: str
    naming: Naming
    labels: Mapping[str, str]
    sensor: float | IHistogram | Family


@define
class _Metric:
    kind: str
    help: str
    isLeastFirst: bool = False
    sources: list[_Source] = field(factory=list)


@frozen
class _Collector:
    """
    One metric, as a collector for prometheus-client's registry.
    """

    metric: Metric

    def collect(self) -> Iterable[Metric]:
        return [self.metric]


def exposition(
    registry: SensorRegistry, namings: Sequence[Naming] = (), labels: Mapping[str, str] = MappingProxyType({})
) -> Iterator[str]:
    """
    Write all sensors in the text format of Prometheus.

    A metric has L{MAX_ROWS} rows at most, however many clients there are; the
    number of omitted rows is a metric, too.

    @param namings: the names of sensors that are not the framework's.
    @param labels: labels of every row that has none of these names.
    @return: pieces, possibly empty, none of which takes long to make.
    """
    leftOut = GaugeMetricFamily(LEFT_OUT, "Rows of a metric that are left out.", None, ["metric"])
    for name, metric in _metricsOf(registry, namings).items():
        made = _KINDS[metric.kind](name, metric.help)
        rows: list[_Row] = []
        count = 0
        choose = nsmallest if metric.isLeastFirst else nlargest
        for source in metric.sources:
            if IHistogram.providedBy(source.sensor):
                read = partial(_samplesOf, name, source.labels, source.sensor)
                made.samples += registry.tryRead(source.name, read) or ()
                continue
            unread = _rowsOf(source, registry.seconds())
            while some := list(islice(unread, ROWS_PER_TURN)):
                count += len(some)
                rows = list(chain(rows, some))
                if len(rows) > MAX_ROWS:
                    rows = choose(MAX_ROWS, rows, key=lambda row: row[0])
                yield ""
        _addRows(made, rows)
        if count > len(rows):
            leftOut.add_metric([f"{name}{_suffixOf(made)}"], count - len(rows))
        yield _textOf(made, labels)
    yield _textOf(leftOut, labels)


def mergedExposition(expositions: Iterable[str]) -> Iterator[str]:
    """
    One exposition of several, whose rows differ by their labels: all rows of a metric are together, as the format
    requires.

    @param expositions: texts that L{exposition} has written.
    @return: pieces, one for each metric.
    """
    metrics: dict[str, tuple[str, list[str]]] = {}
    for text in expositions:
        for block in _HEAD.split(text)[1:]:
            helpLine, typeLine, rows = block.split("\n", 2)
            head = f"{_HEAD_WORD}{helpLine}\n{typeLine}\n"
            metrics.setdefault(helpLine.partition(" ")[0], (head, []))[1].append(rows)
    for head, some in metrics.values():
        yield head + "".join(some)


def _textOf(metric: Metric, labels: Mapping[str, str]) -> str:
    for sample in metric.samples:
        for name, text in labels.items():
            sample.labels.setdefault(name, text)
    return generate_latest(_Collector(metric)).decode("utf-8")


def _metricsOf(registry: SensorRegistry, namings: Sequence[Naming]) -> dict[str, _Metric]:
    """
    The metrics by name, without the suffix of counters: the format requires that all
    rows of a name are together.
    """
    metrics: dict[str, _Metric] = {}

    def add(sensor: str, kind: str, source: float | IHistogram | Family) -> None:
        for naming, labels in namingsOf(sensor, namings):
            name, ofKind = naming.name, kind
            if name.endswith(COUNTER_SUFFIX) and (kind == "counter" or not naming.isMade):
                name, ofKind = name.removesuffix(COUNTER_SUFFIX), "counter"
            if name in metrics and metrics[name].kind != ofKind:
                # Two sensors of different authors whose names differ only in punctuation.
                name = f"{name}_{ofKind}"
            metric = metrics.setdefault(name, _Metric(ofKind, naming.help, naming.isLeastFirst))
            metric.sources.append(_Source(sensor, naming, labels, source))

    for name, value in registry:
        add(name, "counter" if name in registry.counters else "gauge", value)
    for name, histogram in registry.histograms.items():
        add(name, "histogram", histogram)
    for name, family in registry.families.items():
        add(name, "counter" if family.isCounter else "gauge", family)
    return metrics


def _rowsOf(source: _Source, now: float) -> Iterator[_Row]:
    sensor, naming = source.sensor, source.naming
    if isinstance(sensor, Family):
        names = [_labelName(naming.labels.get(name, name)) for name in sensor.labelNames]
        for texts, value in sensor.read(now):
            if not math.isnan(value):
                # A name that cannot be encoded must not take the whole page with it.
                labels = (text[:MAX_LABEL_CHARACTERS].encode("utf-8", "replace").decode() for text in texts)
                yield value * naming.scale, {**source.labels, **dict(zip(names, labels, strict=True))}
    elif isinstance(sensor, int | float):
        yield sensor * naming.scale, source.labels


def _addRows(metric: Metric, rows: Sequence[_Row]) -> None:
    name = f"{metric.name}{_suffixOf(metric)}"
    seen: set[Any] = set()
    for value, labels in rows:
        # Truncated names may have become equal, and no row may occur twice.
        key = frozenset(labels.items())
        if key not in seen:
            seen.add(key)
            metric.add_sample(name, dict(labels), value)


def _suffixOf(metric: Metric) -> str:
    return COUNTER_SUFFIX if metric.type == "counter" else ""


def _samplesOf(name: str, labels: Mapping[str, str], histogram: IHistogram) -> list[Sample]:
    samples: list[Sample] = []
    total = 0
    for bound, count in zip((*histogram.bounds, math.inf), histogram.counts, strict=True):
        total += count
        upTo = "+Inf" if math.isinf(bound) else f"{bound:g}"
        samples.append(Sample(f"{name}_bucket", {**labels, "le": upTo}, float(total)))
    samples.append(Sample(f"{name}_sum", dict(labels), float(histogram.total)))
    samples.append(Sample(f"{name}_count", dict(labels), float(total)))
    return samples


def _labelName(name: str) -> str:
    return re.sub(r"\W", "_", name, flags=re.ASCII)
