package h1

import "testing"

func TestLoginsOfConnections(t *testing.T) {
	t.Parallel()
	for _, v := range []struct {
		name, value string
		want        bool
	}{
		{"WWW-Authenticate", "NTLM", true},
		{"www-authenticate", "negotiate", true},
		{"WWW-Authenticate", "Negotiate oYG2MIGzoAMKAQ==", true},
		{"WWW-Authenticate", `Basic realm="a, b", NTLM`, true},
		{"WWW-Authenticate", `Digest qop="auth",Kerberos`, true},
		{"Proxy-Authenticate", "NTLM TlRMTVNTUAAC", true},
		{"Authorization", "NTLM TlRMTVNTUAAB", true},
		{"AUTHORIZATION", "Negotiate\tYII=", true},
		{"Authorization", "CredSSP AAAA", true},
		{"Authorization", "Nego2 AAAA", true},
		{"Proxy-Authorization", "ntlm AAAA", true},
		{"Persistent-Auth", "true", true},
		{"Authorization", "Basic TlRMTQ==", false},
		{"Authorization", "Bearer Negotiate", false},
		{"Authorization", "NTLMv9 AAAA", false},
		{"WWW-Authenticate", `Basic realm="NTLM"`, false},
		{"X-Authorization", "NTLM AAAA", false},
		{"Authorization", "", false},
	} {
		if got := IsLogin(v.name, v.value); got != v.want {
			t.Errorf("%s: %s: %v", v.name, v.value, got)
		}
		fields := []Field{NewField("Accept", "NTLM"), NewField(v.name, v.value)}
		if got := LogsIn(fields); got != v.want {
			t.Errorf("the fields with %s: %s: %v", v.name, v.value, got)
		}
	}
}
