package handshake

import (
	"errors"
	"net/http"
	"testing"
)

func TestVerify(t *testing.T) {
	const key, accept = "dGhlIHNhbXBsZSBub25jZQ==", "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=" // of RFC 6455, 1.3
	with := func(pairs ...string) http.Header {
		h := http.Header{}
		for i := 0; i < len(pairs); i += 2 {
			h.Add("Sec-WebSocket-"+pairs[i], pairs[i+1])
		}
		return h
	}
	for name, c := range map[string]struct {
		request, answer http.Header
		want            error
	}{
		"plain":                   {with("Key", key), with("Accept", accept), nil},
		"no accept":               {with("Key", key), with(), ErrAccept},
		"empty accept":            {with("Key", key), with("Accept", ""), ErrAccept},
		"the key itself":          {with("Key", key), with("Accept", key), ErrAccept},
		"another case":            {with("Key", key), with("Accept", "S3PPLMBITXAQ9KYGZZHZRBK+XOO="), ErrAccept},
		"accept twice":            {with("Key", key), with("Accept", accept, "Accept", accept), ErrAccept},
		"no key":                  {with(), with("Accept", Accept("")), ErrKey},
		"two keys":                {with("Key", key, "Key", "x"), with("Accept", accept), ErrKey},
		"a protocol":              {with("Key", key, "Protocol", "a, b", "Protocol", "c"), with("Accept", accept, "Protocol", "c"), nil},
		"a protocol not offered":  {with("Key", key, "Protocol", "a, b"), with("Accept", accept, "Protocol", "c"), ErrProtocol},
		"a protocol unasked":      {with("Key", key), with("Accept", accept, "Protocol", "a"), ErrProtocol},
		"an empty protocol":       {with("Key", key), with("Accept", accept, "Protocol", ""), ErrProtocol},
		"all protocols":           {with("Key", key, "Protocol", "a, b"), with("Accept", accept, "Protocol", "a, b"), ErrProtocol},
		"two protocols":           {with("Key", key, "Protocol", "a, b"), with("Accept", accept, "Protocol", "a", "Protocol", "b"), ErrProtocol},
		"an extension":            {with("Key", key, "Extensions", "x, permessage-deflate; client_max_window_bits"), with("Accept", accept, "Extensions", "Permessage-Deflate;server_no_context_takeover"), nil},
		"an extension unasked":    {with("Key", key), with("Accept", accept, "Extensions", "permessage-deflate"), ErrExtension},
		"a second, not offered":   {with("Key", key, "Extensions", "x"), with("Accept", accept, "Extensions", "x, y"), ErrExtension},
		"a second, on a new line": {with("Key", key, "Extensions", "x"), with("Accept", accept, "Extensions", "x", "Extensions", "y"), ErrExtension},
	} {
		if err := Verify(c.request.Values, c.answer.Values); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
}
