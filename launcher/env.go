package launcher

import (
	"maps"
	"slices"
	"strings"
)

// bundlePath is the trust store of Debian, Ubuntu, Alpine and most others; the launcher makes it in images without one.
const bundlePath = "/etc/ssl/certs/ca-certificates.crt"

// trustVariables are read by programs that look for certificates elsewhere than in the system's store. Most of them
// replace the program's own roots, so they name a bundle that holds the public roots as well as the box's CA.
var trustVariables = []string{
	"SSL_CERT_FILE",                    // OpenSSL, Go, Ruby, PHP, Bun
	"CURL_CA_BUNDLE",                   // curl, requests
	"REQUESTS_CA_BUNDLE",               // requests
	"PIP_CERT",                         // pip
	"NODE_EXTRA_CA_CERTS",              // Node, which reads no store of the system's
	"GIT_SSL_CAINFO",                   // git
	"CARGO_HTTP_CAINFO",                // cargo
	"AWS_CA_BUNDLE",                    // AWS's SDKs and command line
	"NPM_CONFIG_CAFILE",                // npm
	"DENO_CERT",                        // Deno
	"PERL_LWP_SSL_CA_FILE",             // LWP
	"HTTPLIB2_CA_CERTS",                // httplib2
	"GRPC_DEFAULT_SSL_ROOTS_FILE_PATH", // gRPC's C core
}

const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// environment is what a command sees: the image's own variables, then the launcher's, then the box's, then the
// command's; later ones win.
func environment(base []string, user execUser, box, command map[string]string) []string {
	env := map[string]string{"PATH": defaultPath}
	for _, kv := range base {
		if k, v, ok := strings.Cut(kv, "="); ok && k != "" {
			env[k] = v
		}
	}
	env["HOME"] = user.home
	env["USER"] = user.name
	env["LOGNAME"] = user.name
	if env["LANG"] == "" {
		env["LANG"] = "C.UTF-8"
	}
	for _, k := range trustVariables {
		env[k] = bundlePath
	}
	maps.Copy(env, box)
	maps.Copy(env, command)
	list := make([]string, 0, len(env))
	for _, k := range slices.Sorted(maps.Keys(env)) {
		list = append(list, k+"="+env[k])
	}
	return list
}
