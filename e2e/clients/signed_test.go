package clients

import (
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"boxgate/audit"
	"boxgate/config"
	"boxgate/e2e/harness"
	"boxgate/internal/lab"
	"boxgate/internal/nightly"
	"boxgate/policy"
	"boxgate/rule/sign/signtest"
	"boxgate/secrets"
)

const (
	cloudHost  = "cloud.example.com"
	otherHost  = "other.example.com"
	awsRegion  = "eu-central-1"
	awsKeyID   = "AKIAREALKEY"
	awsSession = "session-" + harness.Canary
)

// cloud is an object store and a token service that accept only requests signed with the real keys.
type cloud struct {
	mu      sync.Mutex
	objects map[string][]byte
	refused []string
	served  map[string]bool // by method and service
}

// secretIn returns a source that reads a secret from a file.
func secretIn(t *testing.T, name, value string) map[string]secrets.Source {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(value), 0o600); err != nil {
		t.Fatal(err)
	}
	return map[string]secrets.Source{name: {File: path}}
}

// ServeHTTP verifies a request like AWS, and answers with the minimum that clients accept.
func (c *cloud) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	service := "s3"
	if strings.Contains(string(body), "Action=") {
		service = "sts"
	}
	if err == nil {
		err = signtest.Verify(r, body, signtest.Keys{ID: awsKeyID, Secret: harness.Canary, Token: awsSession}, awsRegion, service)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil {
		c.refused = append(c.refused, r.Method+" "+r.RequestURI+": "+err.Error())
		http.Error(w, "<Error><Code>SignatureDoesNotMatch</Code></Error>", http.StatusForbidden)
		return
	}
	c.served[r.Method+" "+service] = true
	w.Header().Set("Content-Type", "application/xml")
	switch {
	case service == "sts":
		_, _ = io.WriteString(w, `<GetCallerIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><GetCallerIdentityResult><Arn>arn:aws:iam::1:user/real</Arn><UserId>U</UserId><Account>1</Account></GetCallerIdentityResult></GetCallerIdentityResponse>`)
	case r.Method == "PUT":
		c.objects[r.URL.Path] = body
	case c.objects[r.URL.Path] != nil:
		w.Header().Set("Content-Length", fmt.Sprint(len(c.objects[r.URL.Path])))
		w.Header().Set("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT")
		_, _ = w.Write(c.objects[r.URL.Path])
	case r.URL.Query().Has("list-type"):
		_, _ = io.WriteString(w, `<ListBucketResult><Name>bucket</Name><KeyCount>1</KeyCount><IsTruncated>false</IsTruncated><Contents><Key>a key</Key><Size>5</Size><LastModified>2026-01-01T00:00:00Z</LastModified></Contents></ListBucketResult>`)
	default:
		w.WriteHeader(http.StatusNotFound)
	}
}

const dummies = "export AWS_ACCESS_KEY_ID=dummy AWS_SECRET_ACCESS_KEY=dummy AWS_DEFAULT_REGION=" + awsRegion + " AWS_EC2_METADATA_DISABLED=true && cd && "

// The AWS command line and boto3 work with dummy keys as with real ones, which are never in the box.
func TestAWSClients(t *testing.T) {
	t.Parallel()
	w, _, _ := newClients(t, func(c *config.Config) {
		c.Secrets.Sources = secretIn(t, "aws", `{"access_key_id":"`+awsKeyID+`","secret_access_key":"`+harness.Canary+`","session_token":"`+awsSession+`"}`)
	})
	c := &cloud{objects: map[string][]byte{}, served: map[string]bool{}}
	for i, host := range []string{cloudHost, otherHost} {
		if err := w.Net.AddHost(host, fmt.Sprintf("198.51.100.%d", 121+i), fmt.Sprintf("2001:db8:1::%d", 121+i)); err != nil {
			t.Fatal(err)
		}
		if err := w.Net.ServeHTTP(host, c); err != nil {
			t.Fatal(err)
		}
	}
	box := w.Create(map[string]any{
		"runtime": "clients", "network_policy": harness.Custom(cloudHost, otherHost), "attach_headers": map[string]any{
			cloudHost: map[string]any{"sign": map[string]any{"aws": map[string]any{
				"credentials": map[string]string{"secret": "aws"}, "region": awsRegion, "service": []string{"s3", "sts"}}}},
			otherHost: map[string]string{"X-Other": "1"},
		},
	})
	aws := "aws --endpoint-url https://" + cloudHost + " --cli-connect-timeout 0 --cli-read-timeout 0 "
	for _, tt := range []struct {
		line, want string
		nightly    bool
	}{
		{aws + "sts get-caller-identity --output text", "arn:aws:iam::1:user/real", false},
		{"printf hello >f && " + aws + "s3 cp f 's3://bucket/a key+b' && " + aws + "s3 cp 's3://bucket/a key+b' -", "hello", false},
		{"printf streamed | " + aws + "s3 cp - s3://bucket/streamed && " + aws + "s3 cp s3://bucket/streamed -", "streamed", true},
		{"head -c 3000000 /dev/zero >big && " + aws + "s3api put-object --bucket bucket --key big --body big && " + aws + "s3api head-object --bucket bucket --key big", "3000000", true},
		{aws + "s3 ls s3://bucket/", "a key", true},
		{`cat >t.py <<'END'
import boto3, urllib.request
from botocore.config import Config
s3 = boto3.client("s3", endpoint_url="https://` + cloudHost + `", config=Config(s3={"addressing_style": "path", "payload_signing_enabled": True}))
s3.put_object(Bucket="bucket", Key="py/ä", Body=b"by boto3", Metadata={"a": "b"})
print(s3.get_object(Bucket="bucket", Key="py/ä")["Body"].read().decode())
url = s3.generate_presigned_url("get_object", Params={"Bucket": "bucket", "Key": "py/ä"})
print("presigned", urllib.request.urlopen(url).read().decode())
END
python3 t.py`, "by boto3\npresigned by boto3", false},
	} {
		if tt.nightly && !nightly.Enabled() {
			continue
		}
		if out, code := w.Sh(box, dummies+tt.line); code != 0 || !strings.Contains(out, tt.want) {
			t.Errorf("%s: exit %d: %s", tt.line, code, out)
		}
	}
	// Another host gets the box's dummy keys.
	if out, code := w.Sh(box, dummies+strings.ReplaceAll(aws, cloudHost, otherHost)+"s3 ls s3://bucket/"); code == 0 || !strings.Contains(out, "SignatureDoesNotMatch") && !strings.Contains(out, "403") && !strings.Contains(out, "Forbidden") {
		t.Errorf("the other host: exit %d: %s", code, out)
	}
	c.mu.Lock()
	if len(c.refused) == 0 || !strings.Contains(c.refused[0], "dummy") || len(c.refused) > 10 || !c.served["POST sts"] || !c.served["PUT s3"] || !c.served["GET s3"] {
		t.Errorf("refused %q, served %v", c.refused, c.served)
	}
	c.mu.Unlock()
	e := w.Event(box, func(e audit.Event) bool { return e.Name == cloudHost && e.Method == "PUT" })
	if e.Verdict != policy.Allow || !strings.Contains(strings.Join(e.Headers, " "), "Authorization X-Amz-Date") {
		t.Errorf("event %+v", e)
	}
	if found := strings.Fields(harness.Output(w.Sh(box, lab.SearchLine(harness.Canary)))); strings.Join(found, " ") != "0 0 0" {
		t.Errorf("matches of the key in environment, /proc and files: %v", found)
	}
	if strings.Contains(w.LogText(), harness.Canary) {
		t.Error("the gateway's log holds the key")
	}
}

// git over HTTPS with basic authentication. The password is the gateway's.
func TestGitWithBasicAuthentication(t *testing.T) {
	t.Parallel()
	w, s, _ := newClients(t, func(c *config.Config) {
		c.Secrets.Sources = secretIn(t, "git", harness.Canary)
	})
	want := "Basic " + base64.StdEncoding.EncodeToString([]byte("x-access-token:"+harness.Canary))
	if err := w.Net.AddHost(cloudHost, "198.51.100.121", "2001:db8:1::121"); err != nil {
		t.Fatal(err)
	}
	err := w.Net.ServeHTTP(cloudHost, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if got := r.Header.Values("Authorization"); len(got) != 1 || got[0] != want {
			http.Error(rw, "no", http.StatusUnauthorized)
			return
		}
		s.git.ServeHTTP(rw, r)
	}))
	if err != nil {
		t.Fatal(err)
	}
	box := w.Create(map[string]any{
		"runtime": "clients", "network_policy": harness.Custom(cloudHost), "attach_headers": map[string]any{
			cloudHost: map[string]any{"headers": map[string]any{"Authorization": map[string]string{"secret": "git", "encode": "basic", "user": "x-access-token"}}},
		},
	})
	for _, url := range []string{"https://" + cloudHost, "https://me:dummy@" + cloudHost} {
		if out, code := w.Sh(box, "cd $(mktemp -d) && git clone -q "+url+"/git/tiny.git && git -C tiny log --format=%s"); code != 0 || !strings.Contains(out, "welcome") {
			t.Errorf("%s: exit %d: %s", url, code, out)
		}
	}
	if out, _ := w.Sh(box, "env; cat /proc/*/environ | tr '\\0' '\\n'"); strings.Contains(out, harness.Canary) {
		t.Error("the box has the token")
	}
}
