package gateway

import (
	"context"
	"errors"
	"io"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/descriptorpb"

	"github.com/csi-addons/node-healer/pkg/api/forwarded"
	"github.com/csi-addons/node-healer/pkg/api/healerpb"
)

// TestIdleReflectionBlocksNobody: one who may only check opens 1,152 streams on 36
// connections, and sends nothing on them.
func TestIdleReflectionBlocksNobody(t *testing.T) {
	w := newWorld(t, TLS{})
	begun := time.Now()
	idle := make(chan error, 36*maxStreams)
	for range 36 {
		client := reflectionv1.NewServerReflectionClient(w.dial())
		for range maxStreams {
			stream, err := client.ServerReflectionInfo(with(t, checking))
			must(t, err)
			go func() { _, err := stream.Recv(); idle <- err }()
		}
	}
	healer := healerpb.NewHealerNodeClient(w.dial())
	for range 10 {
		if answer, err := healer.NodeHealer(with(t, healing), &healerpb.NodeHealerRequest{VolumeId: "v"}); err != nil || answer.GetMessage() != "healthy: v" {
			t.Fatalf("meanwhile another caller got %v, %v", answer, err)
		}
	}
	// They end by themselves: most are too many, the others say nothing for too long.
	ended := map[codes.Code]int{}
	for range cap(idle) {
		ended[status.Code(<-idle)]++
	}
	answered := maxReflections * int(1+time.Since(begun)/reflectionTimeout) // on a busy machine some come once others have ended
	if ended[codes.DeadlineExceeded] > answered || ended[codes.Aborted] == 0 || ended[codes.Aborted]+ended[codes.DeadlineExceeded] != cap(idle) {
		t.Errorf("%d streams ended with %v, want at most %d DEADLINE_EXCEEDED and the others ABORTED", cap(idle), ended, answered)
	}
	must(t, describe(t, w.dial(), checking))
}

// describe does what a client without proto files does with the service.
func describe(t *testing.T, conn *grpc.ClientConn, token string) error {
	t.Helper()
	stream, err := reflectionv1.NewServerReflectionClient(conn).ServerReflectionInfo(with(t, token))
	must(t, err)
	must(t, stream.Send(&reflectionv1.ServerReflectionRequest{MessageRequest: &reflectionv1.ServerReflectionRequest_ListServices{}}))
	list, err := stream.Recv()
	if err != nil {
		return err
	}
	var names []string
	for _, s := range list.GetListServicesResponse().GetService() {
		names = append(names, s.GetName())
	}
	slices.Sort(names)
	if want := []string{"csi.v1.Node", "grpc.reflection.v1.ServerReflection", "healer.HealerNode", "identity.Identity"}; !slices.Equal(names, want) {
		t.Errorf("the services are %q, want %q", names, want)
	}
	must(t, stream.Send(&reflectionv1.ServerReflectionRequest{MessageRequest: &reflectionv1.ServerReflectionRequest_FileContainingSymbol{FileContainingSymbol: "healer.HealerNode"}}))
	must(t, stream.CloseSend())
	files, err := stream.Recv()
	if err != nil {
		return err
	}
	var file descriptorpb.FileDescriptorProto
	must(t, proto.Unmarshal(files.GetFileDescriptorResponse().GetFileDescriptorProto()[0], &file))
	if file.GetPackage() != "healer" {
		t.Errorf("healer.HealerNode is in %s", file.GetName())
	}
	if _, err := stream.Recv(); !errors.Is(err, io.EOF) {
		t.Errorf("after the last question: %v", err)
	}
	return nil
}

func TestReflectionNeedsTheVerbCheck(t *testing.T) {
	w := newWorld(t, TLS{})
	must(t, describe(t, w.dial(), healing))
	for _, token := range []string{nothing, ""} {
		stream, err := reflectionv1.NewServerReflectionClient(w.dial()).ServerReflectionInfo(with(t, token))
		must(t, err)
		if _, err = stream.Recv(); status.Code(err) != codes.Unauthenticated {
			t.Errorf("token %q: %v", token, err)
		}
	}
}

// TestChecksKeepNoHealWaiting: all calls that those who may only check can have open wait
// for the server.
func TestChecksKeepNoHealWaiting(t *testing.T) {
	w := newWorld(t, TLS{})
	checks, leave := context.WithCancel(t.Context())
	defer leave()
	begun := make(chan struct{}, maxCalls+1)
	w.server.wait = func(verb string) {
		if verb == forwarded.VerbCheck {
			begun <- struct{}{}
			<-checks.Done()
		}
	}
	ended := make(chan error, 2*maxCalls)
	for range 2 {
		client := healerpb.NewHealerNodeClient(w.dial())
		for range maxCalls {
			ctx := with(t, checking)
			go func() {
				_, err := client.NodeHealer(ctx, &healerpb.NodeHealerRequest{VolumeId: "v"})
				ended <- err
			}()
		}
	}
	for range maxCalls {
		<-begun
	}
	healer := healerpb.NewHealerNodeClient(w.dial())
	if _, err := healer.NodeHealer(with(t, healing), &healerpb.NodeHealerRequest{VolumeId: "v"}); err != nil {
		t.Errorf("a heal got %v", err)
	}
	select {
	case <-begun:
		t.Errorf("more than %d checks are passed on at once", maxCalls)
	case <-time.After(100 * time.Millisecond):
	}
	leave()
	for got := 0; got < cap(ended); {
		select {
		case err := <-ended:
			must(t, err)
			got++
		case <-begun:
		}
	}
}

// TestChecksThatWereLeftKeepNoHealWaiting: the server works on, and takes no more than so many
// calls on a connection.
func TestChecksThatWereLeftKeepNoHealWaiting(t *testing.T) {
	w := newWorld(t, TLS{})
	answers := make(chan struct{})
	w.server.wait = func(verb string) {
		if verb == forwarded.VerbCheck {
			<-answers
		}
	}
	defer close(answers)
	client := healerpb.NewHealerNodeClient(w.dial())
	for range 3 {
		var all sync.WaitGroup
		for range maxCalls {
			all.Go(func() {
				ctx, leave := context.WithTimeout(with(t, checking), 300*time.Millisecond)
				defer leave()
				if _, err := client.NodeHealer(ctx, &healerpb.NodeHealerRequest{VolumeId: "v"}); status.Code(err) != codes.DeadlineExceeded {
					t.Errorf("a check got %v", err)
				}
			})
		}
		all.Wait()
	}
	ctx, leave := context.WithTimeout(with(t, healing), 10*time.Second)
	defer leave()
	if _, err := healerpb.NewHealerNodeClient(w.dial()).NodeHealer(ctx, &healerpb.NodeHealerRequest{VolumeId: "v"}); err != nil {
		t.Errorf("a heal got %v", err)
	}
}

// TestCallWithoutARequestEnds: a caller that begins a call and does not send its request
// is not waited for; one whose volume takes longer than that is.
func TestCallWithoutARequestEnds(t *testing.T) {
	w := newWorld(t, TLS{})
	w.server.wait = func(string) { time.Sleep(receiveTimeout + time.Second/2) }
	conn := w.dial()
	stream, err := conn.NewStream(with(t, checking), &grpc.StreamDesc{ClientStreams: true}, healerpb.HealerNode_NodeHealer_FullMethodName)
	must(t, err)
	if err := stream.RecvMsg(&healerpb.NodeHealerResponse{}); status.Code(err) != codes.Canceled {
		t.Errorf("without a request: %v", err)
	}
	if _, err := healerpb.NewHealerNodeClient(conn).NodeHealer(with(t, healing), &healerpb.NodeHealerRequest{VolumeId: "v"}); err != nil {
		t.Errorf("a call that takes long: %v", err)
	}
}

// TestTrailersComeBack that are known, and nothing else that the server may send beside an answer.
func TestTrailersComeBack(t *testing.T) {
	w := newWorld(t, TLS{})
	w.server.trailer = metadata.Pairs(healerpb.TrailerMessage, "healthy: in full", healerpb.TrailerConditions, "[]", "else", "x")
	var trailer metadata.MD
	_, err := healerpb.NewHealerNodeClient(w.dial()).NodeHealer(with(t, healing), &healerpb.NodeHealerRequest{VolumeId: "v"}, grpc.Trailer(&trailer))
	if err != nil || !slices.Equal(trailer.Get(healerpb.TrailerMessage), []string{"healthy: in full"}) || !slices.Equal(trailer.Get(healerpb.TrailerConditions), []string{"[]"}) || len(trailer.Get("else")) > 0 {
		t.Errorf("%v, %v", trailer, err)
	}
}
