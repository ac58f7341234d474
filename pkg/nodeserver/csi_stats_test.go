package nodeserver

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/csi-addons/node-healer/pkg/healer"
	"github.com/csi-addons/node-healer/pkg/host"
)

// seenAs is a diagnosis of one volume with one place on one superblock.
func seenAs(sb host.Superblock, conditions ...healer.Condition) healer.Diagnosis {
	p := healer.MountPoint{Role: healer.RoleTarget, Path: pathA, Named: true, Proven: true, Stack: []host.Mount{{Path: pathA, Dev: sb.Dev, FSType: sb.FSType}}}
	if sb.Kind == host.KindBlock {
		p.Inspect.Kind, p.Inspect.Rdev = host.KindBlock, sb.Dev
	}
	return healer.Diagnosis{
		Case:       healer.Case{MountPoints: []healer.MountPoint{p}, Superblocks: map[host.Dev]host.Superblock{sb.Dev: sb}},
		Conditions: conditions,
	}
}

func filesystem(s host.Space) host.Superblock {
	return host.Superblock{Dev: host.Dev{Major: 8, Minor: 1}, FSType: "ext4", Kind: host.KindDirectory, Space: s}
}

func TestUsage(t *testing.T) {
	full := host.Space{BlockSize: 1024, Blocks: 100, Free: 40, Available: 30, Files: 50, FreeFiles: 20}
	bytes := &csi.VolumeUsage{Unit: csi.VolumeUsage_BYTES, Total: 102400, Available: 30720, Used: 61440}
	inodes := &csi.VolumeUsage{Unit: csi.VolumeUsage_INODES, Total: 50, Available: 20, Used: 30}
	disk := host.Superblock{Dev: host.Dev{Major: 8, Minor: 1}, Kind: host.KindBlock, Opened: host.OpenedDevice{Open: true, Size: 1 << 30}}
	silentDisk := disk
	silentDisk.Opened = host.OpenedDevice{}
	for name, tc := range map[string]struct {
		d    healer.Diagnosis
		want []*csi.VolumeUsage
	}{
		"a filesystem":                    {seenAs(filesystem(full)), []*csi.VolumeUsage{bytes, inodes}},
		"that counts no inodes":           {seenAs(filesystem(host.Space{BlockSize: 1024, Blocks: 100, Free: 40, Available: 30})), []*csi.VolumeUsage{bytes}},
		"that says nothing":               {seenAs(filesystem(host.Space{})), nil},
		"that has inodes only":            {seenAs(filesystem(host.Space{Files: 50, FreeFiles: 20})), []*csi.VolumeUsage{inodes}},
		"sick, and it answers":            {seenAs(filesystem(full), healer.Condition{Reason: healer.FilesystemErrors, MountPoint: pathA}), []*csi.VolumeUsage{bytes, inodes}},
		"another volume is there":         {seenAs(filesystem(full), healer.Condition{Reason: healer.WrongVolumeMounted, MountPoint: pathA}), nil},
		"another one at some mount point": {seenAs(filesystem(full), healer.Condition{Reason: healer.WrongVolumeMounted, MountPoint: "/q"}), []*csi.VolumeUsage{bytes, inodes}},
		"a disk":                          {seenAs(disk), []*csi.VolumeUsage{{Unit: csi.VolumeUsage_BYTES, Total: 1 << 30}}},
		"a disk that is silent":           {seenAs(silentDisk), nil},
		"no case":                         {healer.Diagnosis{}, nil},
		"numbers of a liar": {
			seenAs(filesystem(host.Space{BlockSize: math.MaxUint64, Blocks: math.MaxUint64, Free: 1, Available: 0, Files: math.MaxUint64, FreeFiles: 1})),
			[]*csi.VolumeUsage{
				{Unit: csi.VolumeUsage_BYTES, Total: math.MaxInt64, Used: math.MaxInt64},
				{Unit: csi.VolumeUsage_INODES, Total: math.MaxInt64, Available: 1, Used: math.MaxInt64},
			},
		},
		"more free than there is": {
			seenAs(filesystem(host.Space{BlockSize: 1, Blocks: 1, Free: 5, Available: 5, Files: 1, FreeFiles: 5})),
			[]*csi.VolumeUsage{{Unit: csi.VolumeUsage_BYTES, Total: 1, Available: 5}, {Unit: csi.VolumeUsage_INODES, Total: 1, Available: 5}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, want := &csi.NodeGetVolumeStatsResponse{Usage: usage(tc.d)}, &csi.NodeGetVolumeStatsResponse{Usage: tc.want}
			if !proto.Equal(got, want) {
				t.Errorf("got  %v\nwant %v", got, want)
			}
		})
	}
	bare := seenAs(filesystem(full))
	bare.Case.MountPoints[0].Stack = nil
	if got := usage(bare); got != nil {
		t.Errorf("nothing is mounted, and its usage is %v", got)
	}
}

// The path of a request is a mount point, or there is no volume at it.
func TestStatsNeedAPath(t *testing.T) {
	h := &fakeHealer{}
	s := serve(t, testConfig(h))
	for path, want := range map[string]codes.Code{"": codes.InvalidArgument, "some/path": codes.NotFound, "/etc": codes.InvalidArgument} {
		_, err := s.node().NodeGetVolumeStats(testContext(t), statsOf("v", path, pathS))
		if status.Code(err) != want || !strings.HasPrefix(status.Convert(err).Message(), "volume_path: ") {
			t.Errorf("%q: got %v, want %v", path, err, want)
		}
	}
	if len(h.checks()) != 0 {
		t.Error("the healer was asked")
	}
}

// statsBefore113 is NodeGetVolumeStatsResponse as callers know it that were
// built with CSI 1.3 to 1.12.
func statsBefore113(t *testing.T) protoreflect.MessageDescriptor {
	t.Helper()
	field := func(name string, number int32, kind descriptorpb.FieldDescriptorProto_Type, message string) *descriptorpb.FieldDescriptorProto {
		f := &descriptorpb.FieldDescriptorProto{
			Name: &name, Number: &number, Type: &kind, Label: descriptorpb.FieldDescriptorProto_LABEL_OPTIONAL.Enum(),
		}
		if message != "" {
			f.TypeName = &message
		}
		return f
	}
	usage := field("usage", 1, descriptorpb.FieldDescriptorProto_TYPE_MESSAGE, ".csi.v1.VolumeUsage")
	usage.Label = descriptorpb.FieldDescriptorProto_LABEL_REPEATED.Enum()
	file, err := protodesc.NewFile(&descriptorpb.FileDescriptorProto{
		Name: proto.String("before113.proto"), Package: proto.String("before113"), Syntax: proto.String("proto3"),
		Dependency: []string{"csi.proto"},
		MessageType: []*descriptorpb.DescriptorProto{
			{Name: proto.String("Stats"), Field: []*descriptorpb.FieldDescriptorProto{
				usage, field("volume_condition", 2, descriptorpb.FieldDescriptorProto_TYPE_MESSAGE, ".before113.VolumeCondition"),
			}},
			{Name: proto.String("VolumeCondition"), Field: []*descriptorpb.FieldDescriptorProto{
				field("abnormal", 1, descriptorpb.FieldDescriptorProto_TYPE_BOOL, ""),
				field("message", 2, descriptorpb.FieldDescriptorProto_TYPE_STRING, ""),
			}},
		},
	}, protoregistry.GlobalFiles)
	if err != nil {
		t.Fatal(err)
	}
	return file.Messages().ByName("Stats")
}

func TestConditionForOlderCallers(t *testing.T) {
	fields := statsBefore113(t)
	h := &fakeHealer{}
	s := serve(t, testConfig(h))
	shutdown := healer.Condition{Status: healer.Inaccessible, Reason: healer.FilesystemShutdown, MountPoint: pathA, Message: "super option shutdown"}
	slow := healer.Condition{Status: healer.Degraded, Reason: healer.SlowResponse, MountPoint: pathA, Message: "3 in a row"}
	for name, tc := range map[string]struct {
		conditions []healer.Condition
		abnormal   bool
		message    string
	}{
		"healthy": {nil, false, "healthy"},
		"sick":    {[]healer.Condition{shutdown}, true, "abnormal: FilesystemShutdown (target: super option shutdown)"},
		"in two ways": {
			[]healer.Condition{slow, shutdown},
			true,
			"abnormal: FilesystemShutdown (target: super option shutdown), SlowResponse (target: 3 in a row)",
		},
	} {
		t.Run(name, func(t *testing.T) {
			h.next(healer.Report{After: seenAs(filesystem(host.Space{BlockSize: 1, Blocks: 2}), tc.conditions...)}, nil, nil)
			got := dynamicpb.NewMessage(fields)
			if err := s.conn.Invoke(testContext(t), csi.Node_NodeGetVolumeStats_FullMethodName, statsOf("v", pathA, ""), got); err != nil {
				t.Fatal(err)
			}
			condition := got.Get(fields.Fields().ByName("volume_condition")).Message()
			abnormal := condition.Get(condition.Descriptor().Fields().ByName("abnormal")).Bool()
			message := condition.Get(condition.Descriptor().Fields().ByName("message")).String()
			if !got.Has(fields.Fields().ByName("volume_condition")) || abnormal != tc.abnormal || message != tc.message {
				t.Errorf("abnormal=%v %q", abnormal, message)
			}
			if n := got.Get(fields.Fields().ByName("usage")).List().Len(); n != 1 || len(got.GetUnknown()) != 0 {
				t.Errorf("usage and the rest: %v", got)
			}
		})
	}
	// A caller of today finds the usage, and what it does not know is no matter.
	resp, err := s.node().NodeGetVolumeStats(testContext(t), statsOf("v", pathA, ""))
	if err != nil || fmt.Sprint(resp.GetUsage()[0].GetTotal()) != "2" {
		t.Errorf("got %v, %v", resp, err)
	}
}
