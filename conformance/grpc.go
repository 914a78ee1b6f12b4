package conformance

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"time"

	orcapb "github.com/cncf/xds/go/xds/data/orca/v3"
	orcaservice "github.com/cncf/xds/go/xds/service/orca/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/grpclog"
	"google.golang.org/grpc/interop"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/orca"
)

// GRPCServer is grpc-go's interop server.
type GRPCServer struct {
	server   *grpc.Server
	injected atomic.Int64
	calls    atomic.Int64
}

// Calls returns the number of calls received, and the number of calls with the header.
func (s *GRPCServer) Calls() (all, injected int64) { return s.calls.Load(), s.injected.Load() }

// ServeGRPC serves on a listener until [GRPCServer.Stop]. It counts the calls whose metadata has exactly value for key,
// which must be in lower case.
func ServeGRPC(ln net.Listener, cert tls.Certificate, key, value string) *GRPCServer {
	return serveGRPC(ln, credentials.NewTLS(&tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12}), key, value)
}

// ServePlainGRPC is [ServeGRPC] without TLS.
func ServePlainGRPC(ln net.Listener, key, value string) *GRPCServer {
	return serveGRPC(ln, insecure.NewCredentials(), key, value)
}

func serveGRPC(ln net.Listener, security credentials.TransportCredentials, key, value string) *GRPCServer {
	s := &GRPCServer{}
	count := func(ctx context.Context) {
		s.calls.Add(1)
		if md, _ := metadata.FromIncomingContext(ctx); strings.Join(md.Get(key), ",") == value {
			s.injected.Add(1)
		}
	}
	s.server = grpc.NewServer(
		grpc.Creds(security),
		orca.CallMetricsServerOption(nil),
		grpc.ChainUnaryInterceptor(func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
			count(ctx)
			return next(ctx, req)
		}),
		grpc.ChainStreamInterceptor(func(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) error {
			count(ss.Context())
			return next(srv, ss)
		}),
	)
	metrics := orca.NewServerMetricsRecorder()
	orcaservice.RegisterOpenRcaServiceServer(s.server, &loadReports{metrics: metrics})
	testgrpc.RegisterTestServiceServer(s.server, interop.NewTestServer(interop.NewTestServerOptions{MetricsRecorder: metrics}))
	go func() { _ = s.server.Serve(ln) }() // ends with Stop
	return s
}

// Stop closes the listener and every connection.
func (s *GRPCServer) Stop() { s.server.Stop() }

// interopCase is a case of grpc-go's interop client, under its name there.
type interopCase struct {
	name string
	run  func(context.Context, *grpc.ClientConn)
}

// onService turns a function that takes the service's client into a case.
func onService(f func(context.Context, testgrpc.TestServiceClient, ...grpc.CallOption), opts ...grpc.CallOption) func(context.Context, *grpc.ClientConn) {
	return func(ctx context.Context, cc *grpc.ClientConn) { f(ctx, testgrpc.NewTestServiceClient(cc), opts...) }
}

// interopCases returns the cases that need no credentials, the cases with bodies again with gzip, and the soak test.
func interopCases(target Target) []interopCase {
	zip := grpc.UseCompressor(gzip.Name)
	return []interopCase{
		{"empty_unary", onService(interop.DoEmptyUnaryCall)},
		{"large_unary", onService(interop.DoLargeUnaryCall)},
		{"client_streaming", onService(interop.DoClientStreaming)},
		{"server_streaming", onService(interop.DoServerStreaming)},
		{"ping_pong", onService(interop.DoPingPong)},
		{"empty_stream", onService(interop.DoEmptyStream)},
		{"timeout_on_sleeping_server", onService(interop.DoTimeoutOnSleepingServer)},
		{"cancel_after_begin", onService(interop.DoCancelAfterBegin)},
		{"cancel_after_first_response", onService(interop.DoCancelAfterFirstResponse)},
		{"status_code_and_message", onService(interop.DoStatusCodeAndMessage)},
		{"special_status_message", onService(interop.DoSpecialStatusMessage)},
		{"custom_metadata", onService(interop.DoCustomMetadata)},
		{"unimplemented_method", interop.DoUnimplementedMethod},
		{"unimplemented_service", func(ctx context.Context, cc *grpc.ClientConn) {
			interop.DoUnimplementedService(ctx, testgrpc.NewUnimplementedServiceClient(cc))
		}},
		{"orca_per_rpc", func(ctx context.Context, cc *grpc.ClientConn) {
			interop.DoORCAPerRPCTest(ctx, testgrpc.NewTestServiceClient(cc))
		}},
		{"orca_oob", func(ctx context.Context, cc *grpc.ClientConn) {
			interop.DoORCAOOBTest(ctx, testgrpc.NewTestServiceClient(cc))
		}},
		{"large_unary gzip", onService(interop.DoLargeUnaryCall, zip)},
		{"client_streaming gzip", onService(interop.DoClientStreaming, zip)},
		{"server_streaming gzip", onService(interop.DoServerStreaming, zip)},
		{"ping_pong gzip", onService(interop.DoPingPong, zip)},
		{"rpc_soak", soak(target, false)},
		{"channel_soak", soak(target, true)},
	}
}

// soak repeats large calls from several goroutines, over one connection or a new one per call. The client keeps all
// connections open until the end; a box may have 1024.
func soak(target Target, anew bool) func(context.Context, *grpc.ClientConn) {
	return func(ctx context.Context, cc *grpc.ClientConn) {
		n := 64
		if target.Full {
			n = 800
		}
		channel := func() (*grpc.ClientConn, func()) { return cc, func() {} }
		if anew {
			channel = func() (*grpc.ClientConn, func()) {
				c := dialGRPC(target, false)
				return c, func() { _ = c.Close() }
			}
		}
		interop.DoSoakTest(ctx, interop.SoakTestConfig{
			RequestSize: 271828, ResponseSize: 314159, PerIterationMaxAcceptableLatency: 10 * time.Second,
			OverallTimeout: clientTimeout, ServerAddr: target.Host, NumWorkers: 4, Iterations: n, ChannelForTest: channel,
		})
	}
}

// dialGRPC creates a client; orca enables the server's load reports.
func dialGRPC(target Target, orca bool) *grpc.ClientConn {
	service := `{}`
	if orca {
		service = `{"loadBalancingConfig":[{"test_backend_metrics_load_balancer":{}}]}`
	}
	cc, err := grpc.NewClient("dns:///"+target.Host+":443", grpc.WithDefaultServiceConfig(service), grpc.WithDisableServiceConfig(),
		grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{MinVersion: tls.VersionTLS12})))
	if err != nil {
		panic(failure(err.Error()))
	}
	return cc
}

// failure is the panic value of a failed case: the interop client reports failures as fatal log messages.
type failure string

// fatalLog turns fatal messages into panics of type failure and discards all others.
type fatalLog struct{ grpclog.LoggerV2 }

func (fatalLog) Info(...any)             {}
func (fatalLog) Infoln(...any)           {}
func (fatalLog) Infof(string, ...any)    {}
func (fatalLog) Warning(...any)          {}
func (fatalLog) Warningln(...any)        {}
func (fatalLog) Warningf(string, ...any) {}
func (fatalLog) Error(...any)            {}
func (fatalLog) Errorln(...any)          {}
func (fatalLog) Errorf(string, ...any)   {}
func (fatalLog) V(int) bool              { return false }
func (fatalLog) Fatal(args ...any)       { panic(failure(fmt.Sprint(args...))) }
func (fatalLog) Fatalln(args ...any)     { panic(failure(fmt.Sprintln(args...))) }
func (fatalLog) Fatalf(format string, args ...any) {
	panic(failure(fmt.Sprintf(format, args...)))
}

// grpcInterop runs the cases of grpc-go's interop client, each on a separate connection.
func grpcInterop(ctx context.Context, target Target) ([]Result, error) {
	grpclog.SetLoggerV2(fatalLog{})
	var out []Result
	for _, c := range interopCases(target) {
		out = append(out, c.runIsolated(ctx, target))
	}
	return out, nil
}

// caseTime bounds every case except the soak test.
const caseTime = 20 * time.Second

func (c interopCase) runIsolated(ctx context.Context, target Target) (r Result) {
	r = Result{Case: c.name, Outcome: Failed}
	if !strings.HasSuffix(c.name, "soak") {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, caseTime)
		defer cancel()
	}
	defer func() {
		if v := recover(); v != nil {
			f, ok := v.(failure)
			if !ok {
				panic(v)
			}
			r.Detail = string(f)
		}
	}()
	cc := dialGRPC(target, strings.HasPrefix(c.name, "orca"))
	defer cc.Close()
	// Two cases, a timeout and a cancellation, pass even if the server is unreachable.
	interop.DoEmptyUnaryCall(ctx, testgrpc.NewTestServiceClient(cc))
	c.run(ctx, cc)
	r.Outcome = OK
	return r
}

// loadReports is the service that the case orca_oob subscribes to. grpc-go's service sends at most one report every 30
// seconds; the interop server overrides that with an internal API.
type loadReports struct {
	orcaservice.UnimplementedOpenRcaServiceServer
	metrics orca.ServerMetricsRecorder
}

// StreamCoreMetrics sends a report immediately and then at the requested interval.
func (l *loadReports) StreamCoreMetrics(req *orcaservice.OrcaLoadReportRequest, stream orcaservice.OpenRcaService_StreamCoreMetricsServer) error {
	tick := time.NewTicker(max(req.GetReportInterval().AsDuration(), 10*time.Millisecond))
	defer tick.Stop()
	for {
		m := l.metrics.(orca.ServerMetricsProvider).ServerMetrics()
		err := stream.Send(&orcapb.OrcaLoadReport{
			CpuUtilization: max(m.CPUUtilization, 0), MemUtilization: max(m.MemUtilization, 0), Utilization: m.Utilization,
		})
		if err != nil {
			return err
		}
		select {
		case <-stream.Context().Done():
			return stream.Context().Err()
		case <-tick.C:
		}
	}
}
