# SPDX-License-Identifier: Apache-2.0
"""What exporters and collectors say of themselves. Standard library only: it runs on the node."""

from __future__ import annotations

import re
import urllib.request

_SAMPLE = re.compile(r"^([A-Za-z_:][A-Za-z0-9_:]*)(?:\{.*\})?[ \t]+(\S+)")

#: Of each collector: what grows as it delivers (Prometheus: the time of the newest sample that it has done with), and
#: what it counts when samples are lost for good.
COLLECTORS = {
    "prometheus": (
        ("prometheus_remote_storage_queue_highest_sent_timestamp_seconds",),
        ("prometheus_remote_storage_samples_failed_total", "prometheus_remote_storage_samples_dropped_total"),
    ),
    "otel": (
        ("otelcol_exporter_sent_metric_points", "otelcol_exporter_sent_metric_points_total"),
        ("otelcol_exporter_send_failed_metric_points", "otelcol_exporter_send_failed_metric_points_total"),
    ),
}

#: A refusal for good, as both collectors log it: 408 and 429 are retried, as are errors of the server.
_REFUSED = re.compile(r"HTTP status (?!408|429)4\d\d\b[^\"\\;\n]*")

_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def fetch(url, seconds=5):
    """The text behind a URL; OSError if there is none. No proxy: it is this machine."""
    with _OPENER.open(url, timeout=seconds) as answer:
        return answer.read().decode(errors="replace")


def total(text, names):
    """The sum of all series of these names."""
    found = 0.0
    for line in text.splitlines():
        match = _SAMPLE.match(line)
        if match and match[1] in names:
            found += float(match[2])
    return found


def refusal(journal):
    """The last refusal for good in a collector's journal, such as ``HTTP status 403 Forbidden: ...``, or ""."""
    found = _REFUSED.findall(journal)
    return found[-1].strip(" :{") if found else ""


class Delivery:
    """Readings of a collector's own metrics, until one says that it delivers."""

    def __init__(self, collector, recent_seconds):
        self.names, self.timestamps = COLLECTORS[collector], collector == "prometheus"
        self.recent = recent_seconds
        self.first = None
        self.losses = 0  #: readings that showed more lost samples than the one before
        self.lost = 0.0

    def works(self, text, now):
        """Has it delivered lately, with no loss since the first reading?"""
        progress, lost = (total(text, names) for names in self.names)
        if self.first is None:
            self.first = (progress, lost)
        elif lost > self.lost:
            self.losses += 1
        self.lost = lost
        fresh = now - progress < self.recent if self.timestamps else progress > 0
        if not fresh:
            return False
        # A loss of long ago is told from one of now by the next delivery; without any loss, there is no need to wait.
        return (lost == 0 and self.timestamps) or (progress > self.first[0] and lost == self.first[1])

    def losing(self, text):
        """How many samples were lost since the first reading."""
        return total(text, self.names[1]) - self.first[1] if self.first else 0
