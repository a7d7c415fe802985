#!/bin/sh
# A cloud-hypervisor guest on tapring. Give the kernel and the disk:
#   tapring serve --socket-path /run/tap0.sock --tap tap0 --create-tap --queue-pairs 2 &
#   config/cloud-hypervisor.sh vmlinux disk.raw
# num_queues counts rings, two a pair. Guest memory has to be shared.
exec cloud-hypervisor \
    --kernel "$1" --disk "path=$2" --cmdline "console=ttyS0 root=/dev/vda1" \
    --cpus boot=2 --memory size=1G,shared=on \
    --net vhost_user=true,socket="${SOCKET:-/run/tap0.sock}",num_queues=4,queue_size=256 \
    --serial tty --console off
