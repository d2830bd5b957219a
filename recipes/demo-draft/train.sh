#!/usr/bin/env bash
# How the built-in draft was finished: answers of the demo target, 180 steps, about an hour on 2 cores.
# It went on from the draft that was built in until then; run again, it goes on from the present one.
set -euo pipefail
cd "$(dirname "$0")"
exec mirror-sd train --target demo --data data --init-from demo --out "${1:-out}" \
  --steps 180 --batch 16 --anchors 32 --lr 3e-4 \
  --evaluate-every 60 --evaluate-prompts 24 --checkpoint-every 20 --export-bits 8
