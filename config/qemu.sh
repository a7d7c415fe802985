#!/bin/sh
# A QEMU guest on tapring. Give the disk:
#   tapring serve --socket-path /run/tap0.sock --tap tap0 --create-tap --queue-pairs 2 &
#   config/qemu.sh disk.qcow2
# queues counts pairs. Guest memory has to be shared. reconnect lets the daemon be restarted under
# the guest (QEMU 9.2 and later: reconnect-ms=200).
exec qemu-system-x86_64 \
    -accel kvm -cpu host -smp 2 -m 1G \
    -object memory-backend-memfd,id=mem,size=1G,share=on -numa node,memdev=mem \
    -chardev socket,id=net0,path="${SOCKET:-/run/tap0.sock}",reconnect=1 \
    -netdev vhost-user,id=net0,chardev=net0,queues=2 \
    -device virtio-net-pci,netdev=net0,mq=on,vectors=6 \
    -drive "file=$1,if=virtio" -nographic
