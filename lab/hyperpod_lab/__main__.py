# SPDX-License-Identifier: Apache-2.0
from hyperpod_lab.cli import main

main()
