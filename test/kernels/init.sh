#!/bin/busybox sh
# Process 1 of the initramfs: loads the modules that the disks need, puts a
# writable layer over the root filesystem, and hands over to the job's `run`.
export PATH=/bin
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev
while read -r module; do
	insmod "/modules/$module" || echo "init: no module $module"
done </modules/order
mkdir -p /lower /rw /new
mount -t squashfs -o ro /dev/vda /lower &&
	mount -t tmpfs tmpfs /rw &&
	mkdir /rw/upper /rw/work &&
	mount -t overlay -o lowerdir=/lower,upperdir=/rw/upper,workdir=/rw/work overlay /new &&
	mkdir -p /new/job /new/disk &&
	mount -t squashfs -o ro /dev/vdb /new/job || exit # the kernel panics, and QEMU ends
for m in proc sys dev; do
	mount --move /$m /new/$m
done
exec switch_root /new /job/run
