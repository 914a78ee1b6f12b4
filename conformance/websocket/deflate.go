package websocket

import (
	"bytes"
	"compress/flate"
	"io"
	"strconv"
	"strings"
)

const (
	windowMax = 32 << 10
	// deflateTail ends the output of a flushed compressor and is removed on the wire (RFC 7692, 7.2.1).
	deflateTail = "\x00\x00\xff\xff"
	// inflateTail is appended for the decompressor: deflateTail and an empty final block.
	inflateTail = deflateTail + "\x01\x00\x00\xff\xff"
)

// agreed holds the negotiated parameters of permessage-deflate (RFC 7692, 7.1).
type agreed struct {
	serverForgets, clientForgets bool // no context takeover
	serverWindow                 int  // bytes; 0: the maximum
}

// accept chooses the first acceptable offer and returns the parameters for the response.
func accept(offers string) (a agreed, answer string, ok bool) {
	for offer := range strings.SplitSeq(offers, ",") {
		if a, answer, ok := acceptOne(offer); ok {
			return a, answer, true
		}
	}
	return agreed{}, "", false
}

func acceptOne(offer string) (a agreed, answer string, ok bool) {
	parts := strings.Split(offer, ";")
	if strings.TrimSpace(parts[0]) != "permessage-deflate" {
		return a, "", false
	}
	answer = "permessage-deflate"
	for _, p := range parts[1:] {
		p = strings.TrimSpace(p)
		switch {
		case p == "client_no_context_takeover" || p == "client_max_window_bits":
			continue // a capability of the client that is not used
		case p == "server_no_context_takeover":
			a.serverForgets = true
		case a.takesWindow(p):
		default:
			return a, "", false
		}
		answer += "; " + p
	}
	return a, answer, true
}

// takesWindow parses server_max_window_bits.
func (a *agreed) takesWindow(p string) bool {
	value, is := strings.CutPrefix(p, "server_max_window_bits=")
	bits, err := strconv.Atoi(value)
	if !is || err != nil || bits < 9 || bits > 15 {
		return false
	}
	a.serverWindow = 1 << bits
	return true
}

// agreement parses a server's response. It may require of the client only capabilities that the client offered.
func agreement(answer string) (a agreed, ok bool) {
	for p := range strings.SplitSeq(answer, ";") {
		switch p = strings.TrimSpace(p); {
		case p == "permessage-deflate":
			ok = true
		case p == "server_no_context_takeover":
			a.serverForgets = true
		case p == "client_no_context_takeover":
			a.clientForgets = true
		case a.takesWindow(p):
		default:
			return a, false
		}
	}
	return a, ok
}

// deflater compresses the messages of one direction.
type deflater struct {
	forgets bool
	window  int
	out     bytes.Buffer
	w       *flate.Writer
}

// compress returns a compressed message, valid until the next call.
//
// The compressor supports only one window size. A smaller window is emulated by a reset after that many bytes.
func (d *deflater) compress(message []byte) ([]byte, error) {
	d.out.Reset()
	if d.w == nil {
		w, err := flate.NewWriter(&d.out, flate.BestSpeed)
		if err != nil {
			return nil, err
		}
		d.w = w
	}
	small := d.window > 0 && d.window < windowMax
	for piece := message; ; {
		if d.forgets || small {
			d.w.Reset(&d.out)
		}
		n := len(piece)
		if small {
			n = min(n, d.window)
		}
		if _, err := d.w.Write(piece[:n]); err != nil {
			return nil, err
		}
		if err := d.w.Flush(); err != nil {
			return nil, err
		}
		if piece = piece[n:]; len(piece) == 0 {
			break
		}
	}
	return bytes.TrimSuffix(d.out.Bytes(), []byte(deflateTail)), nil
}

// inflater decompresses the messages of one direction.
type inflater struct {
	forgets bool
	window  []byte // the window
	r       io.ReadCloser
}

// decompress returns the decompressed message.
func (i *inflater) decompress(compressed []byte) ([]byte, error) {
	if i.forgets {
		i.window = nil
	}
	in := io.MultiReader(bytes.NewReader(compressed), strings.NewReader(inflateTail))
	if i.r == nil {
		i.r = flate.NewReaderDict(in, i.window)
	} else if err := i.r.(flate.Resetter).Reset(in, i.window); err != nil {
		return nil, err
	}
	message, err := io.ReadAll(io.LimitReader(i.r, messageMax+1))
	switch {
	case err != nil:
		return nil, err
	case len(message) > messageMax:
		return nil, errTooBig
	}
	i.window = append(i.window, message...)
	i.window = append([]byte(nil), i.window[max(0, len(i.window)-windowMax):]...)
	return message, nil
}
