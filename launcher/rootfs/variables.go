package rootfs

// BundlePath is the trust store of Debian, Ubuntu, Alpine and most others; the launcher creates it in images without one.
const BundlePath = "/etc/ssl/certs/ca-certificates.crt"

// TrustVariables are for programs that do not use the system's store. Most of them replace the program's own roots, so they
// point to a bundle with the public roots and the box's CA. AWS_CA_BUNDLE is missing: with it AWS's SDK for Go fails in
// programs that pass it a custom HTTP client, and the other AWS SDKs work with these variables.
var TrustVariables = []string{
	"SSL_CERT_FILE",                    // OpenSSL, Go, Ruby, PHP, Bun
	"CURL_CA_BUNDLE",                   // curl, requests
	"REQUESTS_CA_BUNDLE",               // requests, boto3, AWS's command line
	"PIP_CERT",                         // pip
	"NODE_EXTRA_CA_CERTS",              // Node, which does not read the system's store
	"GIT_SSL_CAINFO",                   // git
	"CARGO_HTTP_CAINFO",                // cargo
	"NPM_CONFIG_CAFILE",                // npm
	"DENO_CERT",                        // Deno
	"PERL_LWP_SSL_CA_FILE",             // LWP
	"HTTPLIB2_CA_CERTS",                // httplib2
	"GRPC_DEFAULT_SSL_ROOTS_FILE_PATH", // gRPC's C core
}
