package postgres

import (
	"bytes"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/jackc/pgx/v5/pgproto3"
)

// TestAttackCostlyProof: a box's user may set a password with any number of iterations. The gateway does not compute them.
func TestAttackCostlyProof(t *testing.T) {
	t.Parallel()
	for ask, fails := range map[string]bool{
		"r=nonce,s=c2FsdA==,i=4096":      false,
		"r=nonce,s=c2FsdA==,i=100000":    false,
		"r=nonce,s=c2FsdA==,i=100001":    true,
		"r=nonce,s=c2FsdA==,i=+10000000": true,
		"r=nonce,s=c2FsdA==,i=000100001": true,
		"r=nonce,s=c2FsdA==":             false, // not answered
		"":                               false,
	} {
		var sent []byte
		for _, m := range []pgproto3.BackendMessage{
			&pgproto3.NoticeResponse{Message: "i=100001"}, &pgproto3.AuthenticationSASLContinue{Data: []byte(ask)}, &pgproto3.ReadyForQuery{TxStatus: 'I'},
		} {
			var err error
			if sent, err = m.Encode(sent); err != nil {
				t.Fatal(err)
			}
		}
		for name, r := range map[string]io.Reader{"at once": bytes.NewReader(sent), "byte by byte": iotest.OneByteReader(bytes.NewReader(sent))} {
			got, err := io.ReadAll(&messageReader{r: r})
			switch {
			case fails && (err == nil || !strings.Contains(err.Error(), "iterations") || bytes.Contains(got, []byte("r=nonce"))):
				t.Errorf("%s, %s: %q, %v", ask, name, got, err)
			case !fails && (err != nil || !bytes.Equal(got, sent)):
				t.Errorf("%s, %s: %q, %v; want %q", ask, name, got, err, sent)
			}
		}
	}
}
