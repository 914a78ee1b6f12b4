package spec

import (
	"encoding/json"
	"reflect"

	"boxgate/policy/match"
	"boxgate/rule"
	"boxgate/rule/kinds"
)

// Headers is the JSON of header rules, host pattern to a compact or a full entry, which policy.ParseHeaderRules reads.
type Headers struct{ json.RawMessage }

// Forms describes the rules.
func (Headers) Forms() []reflect.Type {
	return []reflect.Type{reflect.TypeFor[map[string]headerEntries]()}
}

// headerEntries is what one host pattern has.
type headerEntries struct{}

// Forms lists an entry and a list of alternatives.
func (headerEntries) Forms() []reflect.Type {
	return []reflect.Type{reflect.TypeFor[headerEntry](), reflect.TypeFor[[]headerEntry]()}
}

// headerEntry is one entry of a host pattern.
type headerEntry struct{}

// Forms lists the compact form, header name to value, the full one, and that of a server that does not speak HTTP.
func (headerEntry) Forms() []reflect.Type {
	return []reflect.Type{reflect.TypeFor[map[string]string](), reflect.TypeFor[headerEntryBody](), reflect.TypeFor[loginBody](), reflect.TypeFor[sshLoginBody](), reflect.TypeFor[proxyLoginBody]()}
}

// loginBody describes the entry of a server that does not speak HTTP.
type loginBody struct {
	Postgres postgresBody `json:"postgres" doc:"the gateway logs in to this PostgreSQL server in the place of the box; the pattern must be a host with a port"`
}

// postgresBody describes a login to PostgreSQL.
type postgresBody struct {
	User     string         `json:"user" doc:"the only one as whom the box may connect"`
	Database string         `json:"database" doc:"the only one that the box may connect to"`
	Password rule.ValueForm `json:"password" doc:"a literal or a secret, without prefix or suffix"`
	Auth     string         `json:"auth,omitempty" doc:"scram-sha-256 (default), or a weaker way in which the password may be proved as well: password (inside TLS), md5"`
}

// sshLoginBody describes the entry of an SSH server.
type sshLoginBody struct {
	SSH sshBody `json:"ssh" doc:"the gateway logs in to this SSH server in the place of the box; the pattern must be a host with a port"`
}

// proxyLoginBody describes the entry of an upstream proxy.
type proxyLoginBody struct {
	Proxy proxyBody `json:"proxy" doc:"what the gateway authenticates by to this upstream proxy; the pattern must be a host with a port, and no box is given it"`
}

// proxyBody describes a login to an upstream proxy.
type proxyBody struct {
	Scheme   string         `json:"scheme,omitempty" enum:"https http socks5" doc:"of the proxy that the login is for; absent: https. The password of the others passes in clear text, and is not given to one of another scheme"`
	Username string         `json:"username"`
	Password rule.ValueForm `json:"password" doc:"a literal or a secret, without prefix or suffix"`
}

// sshBody describes a login to an SSH server.
type sshBody struct {
	User     string        `json:"user" doc:"the only one as whom the box may log in"`
	Key      secretBody    `json:"key" doc:"the private key, which is a document in the configuration"`
	HostKeys []string      `json:"host_keys" doc:"public keys of the server, as in known_hosts after the names; @cert-authority before one that signs host certificates"`
	Repos    []sshRepoBody `json:"repos,omitempty" doc:"the box may pull from and push to these repositories, and do nothing else but run commands"`
	Commands []string      `json:"commands,omitempty" doc:"the box may run these commands, exactly as they are, and do nothing else but use repos"`
}

type secretBody struct {
	Secret string `json:"secret" doc:"name of a secret in the gateway's configuration"`
}

type sshRepoBody struct {
	Name   string `json:"name" doc:"owner/repository, or a longer path; without .git"`
	Access string `json:"access" enum:"read push"`
}

// headerEntryBody describes the full form of an entry.
type headerEntryBody struct {
	Match        *match.Match              `json:"match,omitempty" doc:"the requests that the entry is for; absent: every one. Of several entries the first that matches applies alone"`
	Headers      map[string]rule.ValueForm `json:"headers,omitempty"`
	Placeholders map[string]rule.ValueForm `json:"placeholders,omitempty" doc:"environment variable to the value that the gateway replaces its content with; no prefix or suffix"`
	Remove       []string                  `json:"remove,omitempty" doc:"headers of the box that are not passed on"`
	Deny         bool                      `json:"deny,omitempty" doc:"refuse the requests with 403; nothing but match may stand beside it"`
	Places       []string                  `json:"places,omitempty" doc:"where placeholders are replaced: header, which is always one, query, form, json, websocket"`
	Query        map[string]rule.ValueForm `json:"query,omitempty" doc:"parameter to the value that it has in the query; any that the box sends is removed"`
	Sign         *signingBody              `json:"sign,omitempty" doc:"sign the requests, with keys that the box does not have"`
	Scrub        *bool                     `json:"scrub,omitempty" doc:"mask the rule's secrets in responses; true by default for rules with placeholders or a query"`
}

// Members returns the members that the kinds of rules add.
func (headerEntryBody) Members() []reflect.StructField { return kinds.Members() }

// signingBody describes how requests are signed.
type signingBody struct {
	AWS  *awsSigningBody  `json:"aws,omitempty" doc:"by AWS Signature Version 4"`
	HMAC *hmacSigningBody `json:"hmac,omitempty" doc:"by HMAC-SHA256 of a template; instead of aws"`
}

type awsSigningBody struct {
	Credentials rule.ValueForm `json:"credentials" doc:"a JSON object of access_key_id, secret_access_key and session_token, as a string, or a secret with that value"`
	Region      signingScopes  `json:"region"`
	Service     signingScopes  `json:"service"`
}

type hmacSigningBody struct {
	Key       rule.ValueForm `json:"key"`
	Header    string         `json:"header" doc:"that has the signature"`
	Format    string         `json:"format,omitempty" doc:"of the header's value: {signature} by default; {timestamp} as well"`
	Encoding  string         `json:"encoding,omitempty" doc:"hex (default) or base64"`
	Timestamp *signingClock  `json:"timestamp,omitempty"`
	Template  string         `json:"template" doc:"what is signed, with {timestamp}, {method}, {host}, {path}, {query}, {target}, {body}, {body_sha256}"`
}

type signingClock struct {
	Header string `json:"header,omitempty" doc:"that has the time; absent if no header of its own has"`
	Format string `json:"format,omitempty" doc:"unix (default), unix_ms or rfc3339"`
}

// signingScopes is a part of credential scopes.
type signingScopes struct{}

// Forms lists one, and those that the client's own signature chooses from.
func (signingScopes) Forms() []reflect.Type {
	return []reflect.Type{reflect.TypeFor[string](), reflect.TypeFor[[]string]()}
}
