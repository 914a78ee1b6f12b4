package furnish

// BundlePath is the trust store of Debian, Ubuntu, Alpine and most others; the launcher makes it in images without one.
const BundlePath = "/etc/ssl/certs/ca-certificates.crt"

// TrustVariables are read by programs that do not use the system's store. Most of them replace the program's own roots,
// so they name a bundle that has the public roots as well as the box's CA. AWS_CA_BUNDLE is not among them: with it AWS's SDK for
// Go refuses to work in programs that give it an HTTP client of their own, and its other SDKs need none but these.
var TrustVariables = []string{
	"SSL_CERT_FILE",                    // OpenSSL, Go, Ruby, PHP, Bun
	"CURL_CA_BUNDLE",                   // curl, requests
	"REQUESTS_CA_BUNDLE",               // requests, boto3, AWS's command line
	"PIP_CERT",                         // pip
	"NODE_EXTRA_CA_CERTS",              // Node, which reads no store of the system's
	"GIT_SSL_CAINFO",                   // git
	"CARGO_HTTP_CAINFO",                // cargo
	"NPM_CONFIG_CAFILE",                // npm
	"DENO_CERT",                        // Deno
	"PERL_LWP_SSL_CA_FILE",             // LWP
	"HTTPLIB2_CA_CERTS",                // httplib2
	"GRPC_DEFAULT_SSL_ROOTS_FILE_PATH", // gRPC's C core
}
