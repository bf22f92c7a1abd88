#!/bin/sh
# Stops the programs when the package goes; an upgrade leaves them to the operator.
set -e
if [ "$1" = remove ] && [ -d /run/systemd/system ]; then
  systemctl disable --now taskd.service dispatcher.service
fi
