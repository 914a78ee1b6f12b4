package envd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	"net/http"
	"strconv"
	"time"

	"connectrpc.com/connect"
	"go.uber.org/zap"

	"boxgate/api"
	"boxgate/api/problem"
	"boxgate/api/rest"
	"boxgate/quota"
)

// rpc is a procedure.
type rpc struct {
	route   string // ID of the endpoint of boxgate's own API with its permissions
	handler http.Handler
	streams bool // the request is a stream without an end
}

// call is an admitted call of a procedure.
type call struct {
	endpoints *Endpoints
	box       api.Box
	user      string // of boxgate's own API
	header    http.Header
	err       error // of the call, before its translation
}

type callKey struct{}

// serveRPC serves a procedure, and returns the error that it was answered with.
func (e *Endpoints) serveRPC(w http.ResponseWriter, r *http.Request, box api.Box, p rpc) error {
	media, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil || media != "application/json" && media != "application/connect+json" {
		err = problem.Refuse(http.StatusUnsupportedMediaType, "the procedures of a sandbox are served as JSON of the Connect protocol")
		writeRPCError(w, r, http.StatusUnsupportedMediaType, err.Error())
		return err
	}
	c := &call{endpoints: e, box: box, header: r.Header}
	if c.user, err = basicUser(r, box); err == nil {
		err = e.claim(r)
	}
	if err != nil {
		e.Fail(w, r, err)
		return err
	}
	r = r.WithContext(context.WithValue(r.Context(), callKey{}, c))
	if p.streams {
		if err = quota.ScopeOf(r.Context()).Acquire(quota.Memory, streamCost); err != nil {
			e.Fail(w, r, err)
			return err
		}
		r.Body = rest.SteadyBody(w, r)
	} else {
		r.Body = body{e.cfg.Bodies.Whole(w, r), r.Body}
	}
	p.handler.ServeHTTP(newResponse(w), r)
	return c.err
}

// The longest message of a stream of requests, and what such a stream costs while a message may arrive: the message as text and decoded.
const (
	maxStreamed = 1 << 20
	streamCost  = 2 * maxStreamed
)

// claim charges the memory of a request that is decompressed. That of other requests is charged as they arrive.
func (e *Endpoints) claim(r *http.Request) error {
	for _, name := range []string{"Content-Encoding", "Connect-Content-Encoding"} {
		if how := r.Header.Get(name); how != "" && how != "identity" {
			return quota.ScopeOf(r.Context()).Acquire(quota.Memory, e.cfg.Bodies.Most)
		}
	}
	return nil
}

// body is a request body with another reader.
type body struct {
	read interface{ Read([]byte) (int, error) }
	body interface{ Close() error }
}

func (b body) Read(p []byte) (int, error) { return b.read.Read(p) }
func (b body) Close() error               { return b.body.Close() }

// response limits the pauses of a client that does not read, and can be flushed.
type response struct {
	http.ResponseWriter
	steady interface{ Write([]byte) (int, error) }
	rc     *http.ResponseController
}

func newResponse(w http.ResponseWriter) *response {
	return &response{w, rest.SteadyWriter(w), http.NewResponseController(w)}
}

// Write implements [http.ResponseWriter].
func (r *response) Write(b []byte) (int, error) { return r.steady.Write(b) }

// Flush implements [http.Flusher].
func (r *response) Flush() { _ = r.rc.Flush() }

// Unwrap lets http.ResponseController reach the connection.
func (r *response) Unwrap() http.ResponseWriter { return r.ResponseWriter }

// codec is the JSON of messages, without the code of their Protocol Buffers: fields of other versions of the SDK are ignored, as there.
type codec struct{}

// Name implements [connect.Codec].
func (codec) Name() string { return "json" }

// Marshal implements [connect.Codec].
func (codec) Marshal(v any) ([]byte, error) { return json.Marshal(v) }

// Unmarshal implements [connect.Codec].
func (codec) Unmarshal(data []byte, v any) error {
	if len(data) == 0 {
		return errors.New("the message is empty")
	}
	return json.Unmarshal(data, v)
}

// options are the options of all procedures.
func (e *Endpoints) options() []connect.HandlerOption {
	return []connect.HandlerOption{connect.WithCodec(codec{}), connect.WithReadMaxBytes(int(e.cfg.Bodies.Most)), connect.WithCompressMinBytes(1 << 10)}
}

// unary adds a procedure with one request and one response.
func unary[Req, Res any](e *Endpoints, procedure, route string, do func(context.Context, *call, *Req) (*Res, error)) {
	e.rpcs[procedure] = rpc{route: route, handler: connect.NewUnaryHandler(procedure, func(ctx context.Context, req *connect.Request[Req]) (*connect.Response[Res], error) {
		c, _ := ctx.Value(callKey{}).(*call)
		res, err := do(ctx, c, req.Msg)
		if err != nil {
			return nil, c.failed(ctx, err)
		}
		return connect.NewResponse(res), nil
	}, e.options()...)}
}

// serverStream adds a procedure with one request and a stream of responses.
func serverStream[Req, Res any](e *Endpoints, procedure, route string, do func(context.Context, *call, *Req, func(*Res) error) error) {
	e.rpcs[procedure] = rpc{route: route, handler: connect.NewServerStreamHandler(procedure, func(ctx context.Context, req *connect.Request[Req], s *connect.ServerStream[Res]) error {
		c, _ := ctx.Value(callKey{}).(*call)
		if err := do(ctx, c, req.Msg, s.Send); err != nil {
			return c.failed(ctx, err)
		}
		return nil
	}, e.options()...)}
}

// clientStream adds a procedure with a stream of requests and one response.
func clientStream[Req, Res any](e *Endpoints, procedure, route string, do func(context.Context, *call, func() (*Req, bool)) (*Res, error)) {
	e.rpcs[procedure] = rpc{route: route, streams: true, handler: connect.NewClientStreamHandler(procedure, func(ctx context.Context, s *connect.ClientStream[Req]) (*connect.Response[Res], error) {
		c, _ := ctx.Value(callKey{}).(*call)
		res, err := do(ctx, c, func() (*Req, bool) {
			if !s.Receive() {
				return nil, false
			}
			return s.Msg(), true
		})
		if err == nil {
			err = s.Err()
		}
		if err != nil {
			return nil, c.failed(ctx, err)
		}
		return connect.NewResponse(res), nil
	}, append(e.options(), connect.WithReadMaxBytes(maxStreamed))...)}
}

// failed records the error of a call and returns it as one of the protocol.
func (c *call) failed(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil && errors.Is(err, ctx.Err()) {
		err = cause
	}
	c.err = err
	if known, ok := errors.AsType[*connect.Error](err); ok {
		return known
	}
	if errors.Is(err, context.Canceled) {
		return connect.NewError(connect.CodeCanceled, errors.New("the client has disconnected"))
	}
	status, body := problem.StatusOf(err)
	if status >= http.StatusInternalServerError && status != http.StatusGatewayTimeout {
		c.endpoints.cfg.Log.Error("a call of a sandbox failed", zap.String("box", string(c.box.ID)), zap.Int("status", status), zap.Error(err))
	}
	return connect.NewError(codeOf(err, status), errors.New(body.Error))
}

// codes are the codes of the protocol for statuses of boxgate's own API.
var codes = map[int]connect.Code{
	http.StatusBadRequest:            connect.CodeInvalidArgument,
	http.StatusUnauthorized:          connect.CodeUnauthenticated,
	http.StatusForbidden:             connect.CodePermissionDenied,
	http.StatusNotFound:              connect.CodeNotFound,
	http.StatusRequestTimeout:        connect.CodeDeadlineExceeded,
	http.StatusConflict:              connect.CodeFailedPrecondition,
	http.StatusPreconditionFailed:    connect.CodeFailedPrecondition,
	http.StatusRequestEntityTooLarge: connect.CodeInvalidArgument,
	http.StatusUnsupportedMediaType:  connect.CodeInvalidArgument,
	http.StatusUnprocessableEntity:   connect.CodeInvalidArgument,
	http.StatusTooManyRequests:       connect.CodeResourceExhausted,
	http.StatusNotImplemented:        connect.CodeUnimplemented,
	http.StatusBadGateway:            connect.CodeUnavailable,
	http.StatusServiceUnavailable:    connect.CodeUnavailable,
	http.StatusGatewayTimeout:        connect.CodeDeadlineExceeded,
	// The SDK takes the code for exhausted resources for a limit on the rate.
	http.StatusInsufficientStorage: connect.CodeFailedPrecondition,
}

func codeOf(err error, status int) connect.Code {
	if errors.Is(err, api.ErrNotStarted) {
		return connect.CodeInvalidArgument // clients take "unavailable" for a sandbox that does not run
	}
	if code, ok := codes[status]; ok {
		return code
	}
	return connect.CodeInternal
}

// writeRPCError answers a call that did not reach its procedure.
func writeRPCError(w http.ResponseWriter, r *http.Request, status int, message string) {
	code, ok := codes[status]
	if !ok {
		code = connect.CodeInternal
	}
	_ = connect.NewErrorWriter(connect.WithCodec(codec{})).Write(w, r, connect.NewError(code, errors.New(message)))
}

// enum is a value of an enumeration, which JSON has by its name or its number.
type enum struct {
	name   string
	number int
}

// UnmarshalJSON implements [json.Unmarshaler].
func (v *enum) UnmarshalJSON(data []byte) error {
	if err := json.Unmarshal(data, &v.name); err == nil {
		return nil
	}
	return json.Unmarshal(data, &v.number)
}

// is reports whether the value is the one with this name and number.
func (v enum) is(name string, number int) bool {
	return v.name == name || v.name == "" && v.number == number
}

// text is an int64, which JSON of Protocol Buffers has as text.
type text int64

// MarshalJSON implements [json.Marshaler].
func (t text) MarshalJSON() ([]byte, error) {
	return fmt.Appendf(nil, "%q", strconv.FormatInt(int64(t), 10)), nil
}

// keepAliveTime is the interval of signs of life on a stream, unless the client asks for another one.
const (
	keepAliveTime = 90 * time.Second
	minKeepAlive  = time.Second
)

// errQuiet ends the waiting for an event when it is time for a sign of life.
var errQuiet = errors.New("no event")

// keepAlive returns the interval of signs of life that a call asks for.
func (c *call) keepAlive() time.Duration {
	n, err := strconv.Atoi(c.header.Get("Keepalive-Ping-Interval"))
	if err != nil || n <= 0 || n > 24*3600 {
		return keepAliveTime
	}
	return max(minKeepAlive, time.Duration(n)*time.Second)
}
