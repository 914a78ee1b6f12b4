package audit

// Credential is the kind of credential that admitted a request to a public URL, never the credential itself.
type Credential string

// The kinds of credentials.
const (
	CredentialNone    Credential = "none" // the URL is open to everyone
	CredentialBearer  Credential = "bearer"
	CredentialBasic   Credential = "basic"
	CredentialSession Credential = "session" // a browser that signed in with a credential of the URL
	CredentialAccount Credential = "account" // a browser that signed in with an account of the identity provider
	CredentialLink    Credential = "link"    // a signed URL
)
