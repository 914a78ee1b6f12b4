package sign

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"testing"
	"time"

	"boxgate/policy/name"
	"boxgate/rule"
)

// TestCanonicalPaths signs paths as AWS's services read them: with the canonical form computed here, step by step from its
// documentation of Signature Version 4. The rows from "/example/.." on are those of AWS's own test suite.
func TestCanonicalPaths(t *testing.T) {
	t.Parallel()
	for _, try := range []struct{ path, canonical, s3 string }{
		{"/", "/", "/"},
		{"/a/b", "/a/b", "/a/b"},
		{"/a/b/", "/a/b/", "/a/b/"},
		{"/a%20b", "/a%2520b", "/a%20b"},
		{"/a/%2e%2e/b", "/a/%252e%252e/b", "/a/%2e%2e/b"},
		{"/a%2Fb//c", "/a%252Fb/c", "/a%2Fb//c"},
		{"/../../a", "/a", "/../../a"},
		{"/a/.", "/a", "/a/."},
		{"/.../a", "/.../a", "/.../a"},
		{"/example/..", "/", "/example/.."},
		{"/example1/example2/../..", "/", "/example1/example2/../.."},
		{"/./", "/", "/./"},
		{"//", "/", "//"},
		{"/./example", "/example", "/./example"},
		{"//example//", "/example/", "//example//"},
	} {
		for service, want := range map[string]string{"execute-api": try.canonical, "s3": try.s3, "s3-outposts": try.s3, "s3express": try.s3} {
			at := time.Date(2015, 8, 30, 12, 36, 0, 0, time.UTC)
			r := &rule.Message{Method: "GET", Host: "example.amazonaws.com", Target: try.path + "?x=1", Time: at}
			e := &awsEffect{regions: []string{"us-east-1"}, services: []string{service}}
			keys := Credentials{AccessKeyID: "AKIDEXAMPLE", SecretAccessKey: name.NewSecret("wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY")}
			signed, err := e.sign(keys, &request{Message: r})
			if err != nil {
				t.Fatal(err)
			}
			if signed.Target != r.Target {
				t.Errorf("%s is forwarded as %s", r.Target, signed.Target)
			}
			for _, h := range signed.Set {
				if h.Name == "Authorization" && !strings.HasSuffix(h.Value.Reveal(), "Signature="+signatureOf(want, service)) {
					t.Errorf("%s for %s is not signed as %s", try.path, service, want)
				}
			}
			if len(signed.Set) == 0 {
				t.Errorf("%s is not signed", try.path)
			}
		}
	}
}

// signatureOf is the signature of the request of TestCanonicalPaths with a canonical path.
func signatureOf(path, service string) string {
	sum := func(s string) string { b := sha256.Sum256([]byte(s)); return hex.EncodeToString(b[:]) }
	mac := func(key []byte, s string) []byte {
		h := hmac.New(sha256.New, key)
		h.Write([]byte(s))
		return h.Sum(nil)
	}
	empty := sum("")
	canonical := fmt.Sprintf("GET\n%s\nx=1\nhost:example.amazonaws.com\nx-amz-content-sha256:%s\nx-amz-date:20150830T123600Z\n\nhost;x-amz-content-sha256;x-amz-date\n%s",
		path, empty, empty)
	key := []byte("AWS4wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY")
	for _, part := range []string{"20150830", "us-east-1", service, "aws4_request"} {
		key = mac(key, part)
	}
	toSign := "AWS4-HMAC-SHA256\n20150830T123600Z\n20150830/us-east-1/" + service + "/aws4_request\n" + sum(canonical)
	return hex.EncodeToString(mac(key, toSign))
}
