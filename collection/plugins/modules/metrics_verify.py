#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# Not ansible.builtin.uri: exporters and the collector's counters are polled together until deliveries are seen.
"""Verify metrics from the exporters to the receiver."""

from __future__ import annotations

DOCUMENTATION = r"""
module: metrics_verify
short_description: Verify that exporters answer and a collector delivers
description:
  - Polls every exporter until it answers, then the collector's own metrics until it has delivered samples without
    losing any. A receiver that refuses samples for good (HTTP status 4xx, except 408 and 429) ends the wait.
    The error names the failed unit and has the last lines of its journal.
extends_documentation_fragment:
  - hyperpod.lifecycle.attributes
author:
  - hyperpod-lifecycle maintainers (@hyperpod-lifecycle)
options:
  exporters:
    description: Exporters to poll.
    type: list
    elements: dict
    required: true
    suboptions:
      unit:
        description: Unit of the exporter, without suffix.
        type: str
        required: true
      url:
        description: URL of its metrics.
        type: str
        required: true
      metric:
        description: Prefix of a metric to look for. RV(seen) has the result.
        type: str
        default: ""
  collector:
    description: Type of the collector.
    type: str
    choices: [prometheus, otel]
    required: true
  unit:
    description: Unit of the collector.
    type: str
    required: true
  url:
    description: URL of the collector's own metrics.
    type: str
    required: true
  recent_seconds:
    description: Maximum age of the newest delivered sample in seconds.
    type: int
    required: true
  wait_seconds:
    description: Seconds to wait in total.
    type: int
    required: true
"""

EXAMPLES = r"""
- name: Verify that metrics arrive
  hyperpod.lifecycle.metrics_verify:
    exporters: [{unit: hyperpod-node-exporter, url: "http://127.0.0.1:9100/metrics"}]
    collector: prometheus
    unit: hyperpod-metrics-agent
    url: http://127.0.0.1:9095/metrics
    recent_seconds: 60
    wait_seconds: 90
"""

RETURN = r"""
seen:
  description: Whether the metrics of each unit with O(exporters[].metric) include it.
  type: dict
  returned: success
"""

import time

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.hyperpod.lifecycle.plugins.module_utils.commands import Fault, journal
from ansible_collections.hyperpod.lifecycle.plugins.module_utils.metrics import Delivery, fetch, refusal

POLL_SECONDS = 0.5


def answer(unit, url, deadline):
    """Its metrics, as soon as there are any."""
    while True:
        try:
            return fetch(url)
        except (OSError, ValueError) as error:
            if time.monotonic() > deadline:
                raise Fault(f"{unit} does not answer on {url}: {error}; {journal(unit)}") from error
        time.sleep(POLL_SECONDS)


def deliver(params, deadline):
    """Wait until the collector delivers. Two losses in a row and a refusal for good in its journal end the wait."""
    start = int(time.time())
    delivery = Delivery(params["collector"], params["recent_seconds"])
    while True:
        text = answer(params["unit"], params["url"], deadline)
        if delivery.works(text, time.time()):
            return
        if delivery.losses > 1 and (said := refusal(journal(params["unit"], 50, start))):
            remedy = "check observability_remote_write_url, and aps:RemoteWrite in the policy of the instances' role"
            raise Fault(f"the receiver of {params['unit']} refuses samples: {said}; {remedy}")
        if time.monotonic() > deadline:
            lost = delivery.losing(text)
            what = f"has lost {lost:.0f} samples" if lost else "has delivered nothing"
            raise Fault(f"{params['unit']} {what} within {params['wait_seconds']} s; {journal(params['unit'])}")
        time.sleep(POLL_SECONDS)


def main():
    """Run the module."""
    exporter = {
        "unit": {"type": "str", "required": True},
        "url": {"type": "str", "required": True},
        "metric": {"type": "str", "default": ""},
    }
    module = AnsibleModule(
        argument_spec={
            "exporters": {"type": "list", "elements": "dict", "required": True, "options": exporter},
            "collector": {"type": "str", "choices": ["prometheus", "otel"], "required": True},
            "unit": {"type": "str", "required": True},
            "url": {"type": "str", "required": True},
            "recent_seconds": {"type": "int", "required": True},
            "wait_seconds": {"type": "int", "required": True},
        },
        supports_check_mode=True,
    )
    params = module.params
    if module.check_mode:
        module.exit_json(changed=False, seen={})
    deadline = time.monotonic() + params["wait_seconds"]
    try:
        texts = {each["unit"]: answer(each["unit"], each["url"], deadline) for each in params["exporters"]}
        deliver(params, deadline)
    except Fault as fault:
        module.fail_json(msg=str(fault))
    seen = {each["unit"]: each["metric"] in texts[each["unit"]] for each in params["exporters"] if each["metric"]}
    module.exit_json(changed=False, seen=seen)


if __name__ == "__main__":
    main()
