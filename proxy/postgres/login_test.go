package postgres

import (
	"bytes"
	"crypto/md5"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"io"
	"net/url"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/jackc/pgx/v5/pgproto3"

	postgresrule "boxgate/rule/postgres"
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

// TestServersDoNotTellThePassword: a server's text is forwarded unless it contains the password in any form.
func TestServersDoNotTellThePassword(t *testing.T) {
	t.Parallel()
	const password = `it's a "can\ary" of 100%`
	a := &attempt{s: &Session{Login: &postgresrule.Login{User: "app"}}, password: password}
	sum := md5.Sum([]byte(password + "app"))
	quoted, _ := json.Marshal(password)
	for how, text := range map[string]string{
		"as it is": password, "SQL": strings.ReplaceAll(password, `'`, `''`), "an identifier of SQL": strings.ReplaceAll(password, `"`, `""`),
		"escapes of SQL": strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(password), "JSON": string(quoted), "a URL": url.QueryEscape(password),
		"a path": url.PathEscape(password), "base64": base64.StdEncoding.EncodeToString([]byte("app:" + password)), "hexadecimal": hex.EncodeToString([]byte(password)),
		"MD5": "md5" + hex.EncodeToString(sum[:]), "a sum": strings.ToUpper(hex.EncodeToString(sum[:])), "the proof of MD5": "md5" + strings.Repeat("0f", 16),
		"a verifier": "SCRAM-SHA-256$4096:c2FsdA==$a2V5:a2V5",
	} {
		if got := a.withoutPassword("password authentication failed with " + text + "."); got != "(not shown: it contains the password)" {
			t.Errorf("%s: %s", how, got)
		}
	}
	for _, text := range []string{"", `password authentication failed for user "app"`, "no pg_hba.conf entry for host \"192.0.2.1\", user \"app\", database \"orders\", SSL encryption"} {
		if got := a.withoutPassword(text); got != text {
			t.Errorf("%q: %s", text, got)
		}
	}
	a.password = "short"
	if got := a.withoutPassword("of some length"); !strings.HasPrefix(got, "(not shown") {
		t.Error(got)
	}
	for code, want := range map[string]string{"28P01": "28P01", "canary": codeUnreachable, "": codeUnreachable, "28p01": codeUnreachable} {
		if got := sqlState(code); got != want {
			t.Errorf("%q: %s", code, got)
		}
	}
}
