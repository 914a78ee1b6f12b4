package fleet

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// Access is the way to the etcd cluster of the operator.
type Access struct {
	Endpoints []string // URLs: https://, or http:// and unix:// on this machine
	CAFile    string   // PEM roots of the servers' certificates; empty: the system's
	CertFile  string   // PEM certificate of the client, with its KeyFile; empty: none
	KeyFile   string
}

// Times of the connections to etcd.
const (
	// pingEvery is the time between pings on a silent connection with a stream; the first call on one that was idle pings it, too. etcd closes
	// connections that are pinged without a stream, or every five seconds (GOAWAY, too_many_pings), and with them the calls that have begun since.
	pingEvery   = 10 * time.Second
	pingTimeout = 5 * time.Second

	// reconnectWithin is the longest time between two attempts to connect. gRPC's default is two minutes, for which hosts would stay fenced
	// after etcd is back.
	reconnectWithin = 3 * time.Second

	// maxAnswer bounds one answer of etcd in bytes. Lists are read in pages below it.
	maxAnswer = 16 << 20
)

// Dial returns a client of etcd, which the caller closes. It does not wait for a connection: etcd may be away. The files of the
// client's certificate are read at each handshake, so that a renewed one is used without a restart.
func Dial(a Access) (*clientv3.Client, error) {
	secured, err := a.tls()
	if err != nil {
		return nil, err
	}
	client, err := clientv3.New(clientv3.Config{
		Endpoints: a.Endpoints, TLS: secured, DialKeepAliveTime: pingEvery, DialKeepAliveTimeout: pingTimeout,
		MaxCallRecvMsgSize: maxAnswer, Logger: zap.NewNop(),
		DialOptions: []grpc.DialOption{grpc.WithConnectParams(grpc.ConnectParams{
			Backoff: backoff.Config{BaseDelay: 200 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: reconnectWithin}, MinConnectTimeout: reconnectWithin,
		}), grpc.WithChainUnaryInterceptor(ledCall), grpc.WithChainStreamInterceptor(ledStream)},
	})
	if err != nil {
		return nil, fmt.Errorf("the client of etcd: %w", err)
	}
	return client, nil
}

// led marks a request to be refused by a member without a leader, such as one that is cut off from the others. It would otherwise wait for
// seconds, while another member could answer.
func led(ctx context.Context) context.Context {
	return metadata.AppendToOutgoingContext(ctx, rpctypes.MetadataRequireLeaderKey, rpctypes.MetadataHasLeader)
}

func ledCall(ctx context.Context, method string, in, out any, conn *grpc.ClientConn, call grpc.UnaryInvoker, o ...grpc.CallOption) error {
	return call(led(ctx), method, in, out, conn, o...)
}

func ledStream(ctx context.Context, desc *grpc.StreamDesc, conn *grpc.ClientConn, method string, open grpc.Streamer, o ...grpc.CallOption) (grpc.ClientStream, error) {
	return open(led(ctx), desc, conn, method, o...)
}

// tls returns the TLS configuration of the client. Endpoints without TLS do not use it.
func (a Access) tls() (*tls.Config, error) {
	if a.CAFile == "" && a.CertFile == "" {
		return nil, nil // https:// endpoints then use the roots of the system
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12}
	if a.CAFile != "" {
		text, err := os.ReadFile(a.CAFile)
		if err != nil {
			return nil, fmt.Errorf("fleet.tls.ca_file: %w", err)
		}
		if c.RootCAs = x509.NewCertPool(); !c.RootCAs.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("fleet.tls.ca_file: %s has no certificate in PEM", a.CAFile)
		}
	}
	if a.CertFile == "" {
		return c, nil
	}
	if info, err := os.Stat(a.KeyFile); err == nil && info.Mode().Perm()&0o077 != 0 {
		return nil, fmt.Errorf("fleet.tls.key_file: others may read %s (mode %04o), and could take every host of the fleet: run chmod 600 %s", a.KeyFile, info.Mode().Perm(), a.KeyFile)
	}
	load := func() (*tls.Certificate, error) {
		pair, err := tls.LoadX509KeyPair(a.CertFile, a.KeyFile)
		return &pair, err
	}
	if _, err := load(); err != nil {
		return nil, fmt.Errorf("fleet.tls.cert_file and key_file: %w", err)
	}
	c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return load() }
	return c, nil
}

// ErrUnreachable is the error of a request that etcd did not answer, or answered with a failure of its own, such as the loss of its leader.
// Whether a change was made is not known.
var ErrUnreachable = errors.New("etcd does not answer")

// Get returns the value of a key and the revision of its last change; a nil value and 0 if it does not exist. The read is
// linearizable: it fails with [ErrUnreachable] without a quorum.
func Get(ctx context.Context, client *clientv3.Client, key string) (value []byte, revision int64, err error) {
	answer, err := client.Get(ctx, key)
	if err != nil {
		return nil, 0, Unreachable(ctx, err)
	}
	if len(answer.Kvs) == 0 {
		return nil, 0, nil
	}
	return answer.Kvs[0].Value, answer.Kvs[0].ModRevision, nil
}

// Unreachable wraps an error of a request. Unless etcd refused the request, it is [ErrUnreachable], with the reason.
func Unreachable(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil || !refused(err) {
		return fmt.Errorf("%w (%w)", ErrUnreachable, err)
	}
	return fmt.Errorf("etcd: %w", err)
}

// refused reports whether an error means that etcd has not done, and will not do, what was requested. Others leave that open: a connection
// may end, and a member may lose its leader, between a change and its answer.
func refused(err error) bool {
	code := status.Code(err)
	if known := (rpctypes.EtcdError{}); errors.As(err, &known) {
		code = known.Code()
	}
	switch code {
	case codes.InvalidArgument, codes.NotFound, codes.PermissionDenied, codes.Unauthenticated, codes.FailedPrecondition, codes.OutOfRange, codes.ResourceExhausted, codes.Unimplemented:
		return true
	}
	return false
}
