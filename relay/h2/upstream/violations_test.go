package upstream

import (
	"errors"
	"io"
	"strings"
	"testing"

	"golang.org/x/net/http2"

	"boxgate/relay/h2"
)

// TestMalformedResponses sends heads and content that a response must not have: the stream ends, the connection does not.
func TestMalformedResponses(t *testing.T) {
	t.Parallel()
	for name, do := range map[string]func(s *server, id uint32){
		"no status":          func(s *server, id uint32) { s.head(id, true, "x", "y") },
		"two statuses":       func(s *server, id uint32) { s.head(id, true, ":status", "200", ":status", "200") },
		"status of two":      func(s *server, id uint32) { s.head(id, true, ":status", "20") },
		"status with a sign": func(s *server, id uint32) { s.head(id, true, ":status", "+20") },
		"status 099":         func(s *server, id uint32) { s.head(id, true, ":status", "099") },
		"status 101":         func(s *server, id uint32) { s.head(id, false, ":status", "101") },
		"interim at the end": func(s *server, id uint32) { s.head(id, true, ":status", "103") },
		"status behind":      func(s *server, id uint32) { s.head(id, true, "x", "y", ":status", "200") },
		"another pseudo":     func(s *server, id uint32) { s.head(id, true, ":status", "200", ":path", "/") },
		"upper case":         func(s *server, id uint32) { s.head(id, true, ":status", "200", "X", "y") },
		"no name":            func(s *server, id uint32) { s.head(id, true, ":status", "200", "", "y") },
		"space in a name":    func(s *server, id uint32) { s.head(id, true, ":status", "200", "x ", "y") },
		"CR LF":              func(s *server, id uint32) { s.head(id, true, ":status", "200", "x", "y\r\nz: 1") },
		"NUL":                func(s *server, id uint32) { s.head(id, true, ":status", "200", "x", "\x00") },
		"two lengths": func(s *server, id uint32) {
			s.head(id, false, ":status", "200", "content-length", "1", "content-length", "2")
		},
		"length -1": func(s *server, id uint32) { s.head(id, false, ":status", "200", "content-length", "-1") },
		"length too large": func(s *server, id uint32) {
			s.head(id, false, ":status", "200", "content-length", "9223372036854775808")
		},
		"length and no DATA": func(s *server, id uint32) { s.head(id, true, ":status", "200", "content-length", "1") },
		"DATA first":         func(s *server, id uint32) { s.data(id, true, "x") },
		"large head": func(s *server, id uint32) {
			s.head(id, true, ":status", "200", "x", strings.Repeat("y", 33<<10), "z", strings.Repeat("y", 33<<10))
		},
		"many interims":       func(s *server, id uint32) { many(s, id, "x") },
		"long interims":       func(s *server, id uint32) { many(s, id, strings.Repeat("y", 10<<10)) },
		"window of 2^31":      func(s *server, id uint32) { _ = s.WriteWindowUpdate(id, 1<<31-1) },
		"window update of 0":  func(s *server, id uint32) { _ = s.WriteRawFrame(http2.FrameWindowUpdate, 0, id, make([]byte, 4)) },
		"status in a trailer": func(s *server, id uint32) { s.head(id, true, ":status", "20x") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, s := newServer(t)
			s.preface()
			st := open(t, c, true, request("GET", "/"))
			go func() {
				do(s, s.request().StreamID)
			}()
			var err error
			for h := (Head{Status: 100}); err == nil && h.Interim(); {
				h, err = st.Head()
			}
			if e := as[*h2.StreamError](t, err); e.Peer || e.Code != http2.ErrCodeProtocol && e.Code != http2.ErrCodeFlowControl {
				t.Errorf("%v", err)
			}
			if !c.Reserve() {
				t.Error("the connection has ended")
			}
		})
	}
}

func many(s *server, id uint32, value string) {
	for range interimsMax + 1 {
		block := s.fields(":status", "103", "x", value)
		if s.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block[:min(len(block), h2.FrameMax)], EndHeaders: true}) != nil {
			return
		}
	}
}

// TestMalformedContent breaks responses whose head was in order: what came before can be read, and then the error.
func TestMalformedContent(t *testing.T) {
	t.Parallel()
	for name, do := range map[string]func(s *server, id uint32){
		"too much":          func(s *server, id uint32) { s.data(id, false, "x") },
		"too little":        func(s *server, id uint32) { s.data(id, true, "") },
		"a second head":     func(s *server, id uint32) { s.head(id, false, ":status", "200") },
		"status in trailer": func(s *server, id uint32) { s.head(id, true, ":status", "200") },
		"short by trailers": func(s *server, id uint32) { s.head(id, true, "x", "y") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, s := newServer(t)
			s.preface()
			st := open(t, c, true, request("GET", "/"))
			length := "5"
			if name == "too much" {
				length = "4"
			}
			s.head(s.request().StreamID, false, ":status", "200", "content-length", length)
			s.data(1, false, "some")
			do(s, 1)
			if h, err := st.Head(); err != nil || h.Length != int64(length[0]-'0') {
				t.Fatal(h, err)
			}
			b, err := io.ReadAll(st)
			if e := as[*h2.StreamError](t, err); e.Peer || string(b) != "some" {
				t.Errorf("%q, %v", b, err)
			}
			if code := until[*http2.RSTStreamFrame](s, nil).ErrCode; code != http2.ErrCodeProtocol {
				t.Errorf("the server was told %v", code)
			}
			if !c.Reserve() {
				t.Error("the connection has ended")
			}
		})
	}
}

// TestBodilessResponses answers with heads that have a length and no content.
func TestBodilessResponses(t *testing.T) {
	t.Parallel()
	for _, answer := range [][3]string{{"HEAD", "200"}, {"GET", "304"}, {"GET", "204"}} {
		c, s := newServer(t)
		s.preface()
		st := open(t, c, true, request(answer[0], "/"))
		s.head(s.request().StreamID, true, ":status", answer[1], "content-length", "5")
		if h, err := st.Head(); err != nil || !h.End || h.Length != 5 {
			t.Errorf("%v: %+v, %v", answer, h, err)
		}
		if n, err := st.Read(make([]byte, 1)); n != 0 || !errors.Is(err, io.EOF) {
			t.Errorf("%v: %d, %v", answer, n, err)
		}
	}
}

// TestServerIsToldWhy breaks the protocol: the server is sent the code, even if the connection is closed meanwhile.
func TestServerIsToldWhy(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		do   func(s *server, id uint32)
		want http2.ErrCode
	}{
		"PING on a stream":        {func(s *server, id uint32) { _ = s.WriteRawFrame(http2.FramePing, 0, id, make([]byte, 8)) }, http2.ErrCodeProtocol},
		"short PING":              {func(s *server, _ uint32) { _ = s.WriteRawFrame(http2.FramePing, 0, 0, make([]byte, 4)) }, http2.ErrCodeFrameSize},
		"long frame":              {func(s *server, id uint32) { _ = s.WriteRawFrame(http2.FrameData, 0, id, make([]byte, h2.FrameMax+1)) }, http2.ErrCodeFrameSize},
		"window beyond the bound": {func(s *server, _ uint32) { _ = s.WriteWindowUpdate(0, 1<<31-1) }, http2.ErrCodeFlowControl},
		"push": {func(s *server, id uint32) {
			_ = s.WriteRawFrame(http2.FramePushPromise, 4, id, []byte{0, 0, 0, 2, 0x82})
		}, http2.ErrCodeProtocol},
		"push enabled":            {func(s *server, _ uint32) { _ = s.WriteSettings(http2.Setting{ID: http2.SettingEnablePush, Val: 1}) }, http2.ErrCodeProtocol},
		"ACK of nothing":          {func(s *server, _ uint32) { _ = errors.Join(s.WriteSettingsAck(), s.WriteSettingsAck()) }, http2.ErrCodeProtocol},
		"idle stream":             {func(s *server, id uint32) { s.head(id+2, true, ":status", "200") }, http2.ErrCodeProtocol},
		"reset of an idle stream": {func(s *server, id uint32) { _ = s.WriteRSTStream(id+2, http2.ErrCodeCancel) }, http2.ErrCodeProtocol},
		"even stream":             {func(s *server, _ uint32) { s.data(2, true, "x") }, http2.ErrCodeProtocol},
		"ended stream": {func(s *server, id uint32) {
			s.head(id, true, ":status", "200")
			s.data(id, true, "x")
		}, http2.ErrCodeStreamClosed},
		"reset stream": {func(s *server, id uint32) {
			_ = s.WriteRSTStream(id, http2.ErrCodeCancel)
			s.head(id, true, ":status", "200")
		}, http2.ErrCodeStreamClosed},
		"table too large": {func(s *server, id uint32) {
			_ = s.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: []byte("\x3f\xe1\xff\x7f\x88"), EndHeaders: true})
		}, http2.ErrCodeCompression},
		"padding too long": {func(s *server, id uint32) {
			_ = s.WriteRawFrame(http2.FrameData, http2.FlagDataPadded, id, []byte{5, 'x'})
		}, http2.ErrCodeProtocol},
		"padding missing": {func(s *server, id uint32) { _ = s.WriteRawFrame(http2.FrameData, http2.FlagDataPadded, id, nil) }, http2.ErrCodeFrameSize},
		"empty CONTINUATIONs": {func(s *server, id uint32) {
			_ = s.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: []byte{0x88}})
			for range 100 {
				_ = s.WriteContinuation(id, false, nil)
			}
		}, http2.ErrCodeEnhanceYourCalm},
		"window exceeded": {func(s *server, id uint32) {
			s.head(id, false, ":status", "200")
			for range StreamWindow/h2.FrameMax + 1 {
				_ = s.WriteData(id, false, make([]byte, h2.FrameMax))
			}
		}, http2.ErrCodeFlowControl},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conn, s := newServer(t)
			s.preface()
			bystander := open(t, conn, true, request("GET", "/")) // fails with the connection, not before
			s.request()
			open(t, conn, true, request("GET", "/"))
			id := s.request().StreamID
			go func() {
				_, _ = bystander.Head()
				conn.Close()
				bystander.Close()
			}()
			go c.do(s, id)
			for {
				f, err := s.ReadFrame()
				if err != nil {
					t.Fatalf("instead of GOAWAY: %v", err)
				}
				if away, ok := f.(*http2.GoAwayFrame); ok {
					if away.ErrCode != c.want {
						t.Errorf("%v, want %v", away.ErrCode, c.want)
					}
					return
				}
			}
		})
	}
}
