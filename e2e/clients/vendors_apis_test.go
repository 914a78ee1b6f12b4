package clients

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"boxgate/rule/sign/signtest"
)

// gitHub serves the resources of an app's installation token: the API, and a repository.
func (v *vendors) gitHub() {
	app := func(r *http.Request) bool {
		return v.signed(strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer "))["iss"] == "12345"
	}
	scoped := func(r *http.Request) bool {
		var scope struct {
			Repositories []string
			Permissions  map[string]string
		}
		return app(r) && json.NewDecoder(r.Body).Decode(&scope) == nil && fmt.Sprint(scope) == "{[web] map[contents:write pull_requests:write]}"
	}
	token := map[string]any{"token": v.credential("github"), "expires_at": time.Now().Add(time.Hour).UTC().Format(time.RFC3339)}
	api := v.accept("api.github.com", "Authorization", "Bearer "+v.credential("github"), answering(`{"full_name": "acme/web"}`))
	v.hosts["api.github.com"] = pages(map[string]http.Handler{
		"GET /repos/acme/web/installation":          v.issue(app, map[string]int{"id": 678}),
		"POST /app/installations/678/access_tokens": v.issue(scoped, token),
		"/": api,
	})
	v.hosts["github.com"] = v.accept("github.com", "Authorization", basic("x-access-token", v.credential("github")), bareRepositories(v.t, "acme/web"))
}

func (v *vendors) openAI() {
	v.bearer("api.openai.com", "openai", pages(map[string]http.Handler{
		"GET /v1/models":            answering(`{"object": "list", "data": [{"id": "welcome", "object": "model"}]}`),
		"POST /v1/chat/completions": answering(`{"id": "1", "object": "chat.completion", "choices": [{"index": 0, "message": {"role": "assistant", "content": "welcome"}, "finish_reason": "stop"}]}`),
	}))
}

// anthropic keeps its key in a Vault.
func (v *vendors) anthropic() {
	v.hosts["api.anthropic.com"] = v.accept("api.anthropic.com", "X-Api-Key", v.credential("anthropic"), pages(map[string]http.Handler{
		"GET /v1/models":    answering(`{"data": [{"id": "welcome", "type": "model"}]}`),
		"POST /v1/messages": answering(`{"id": "1", "type": "message", "role": "assistant", "model": "m", "content": [{"type": "text", "text": "welcome"}]}`),
	}))
	login := func(r *http.Request) bool {
		var body map[string]string
		return json.NewDecoder(r.Body).Decode(&body) == nil && body["role_id"] == "boxgate" && body["secret_id"] == v.credential("vault-id")
	}
	reader := func(r *http.Request) bool { return r.Header.Get("X-Vault-Token") == v.credential("vault-token") }
	v.hosts["vault.example.com:8200"] = pages(map[string]http.Handler{
		"POST /v1/auth/approle/login":      v.issue(login, map[string]any{"auth": map[string]any{"client_token": v.credential("vault-token"), "lease_duration": 3600}}),
		"GET /v1/secret/data/ai/anthropic": v.issue(reader, map[string]any{"data": map[string]any{"data": map[string]string{"key": v.credential("anthropic")}}}),
	})
}

func (v *vendors) googleCloud() {
	account := func(r *http.Request) bool {
		return v.signed(r.PostFormValue("assertion"))["iss"] == "robot@example.com"
	}
	access := v.issue(account, map[string]any{"access_token": v.credential("gcp"), "token_type": "Bearer", "expires_in": 3600})
	service := v.issue(account, map[string]any{"id_token": v.idToken()})
	v.hosts["oauth2.googleapis.com"] = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if v.signed(r.PostFormValue("assertion"))["target_audience"] == "https://service.example.run.app" {
			service(w, r)
			return
		}
		access(w, r)
	})
	v.bearer("storage.googleapis.com", "gcp", pages(map[string]http.Handler{
		"GET /storage/v1/b/bucket/o": answering(`{"kind": "storage#objects", "items": [{"kind": "storage#object", "name": "welcome", "bucket": "bucket"}]}`),
	}))
	v.hosts["service.example.run.app"] = v.accept("service.example.run.app", "Authorization", "Bearer "+v.idToken(), answering(`"welcome"`))
}

// idToken returns a token that contains its expiry time.
func (v *vendors) idToken() string {
	return "eyJhbGciOiJub25lIn0." + base64.RawURLEncoding.EncodeToString([]byte(`{"exp": 4102444800}`)) + "." + v.credential("run")
}

func (v *vendors) azure() {
	application := func(r *http.Request) bool {
		claims := v.signed(r.PostFormValue("client_assertion"))
		return claims["iss"] == "00000000-0000-0000-0000-000000000000" && r.PostFormValue("scope") == "https://management.azure.com/.default"
	}
	v.hosts["login.microsoftonline.com"] = pages(map[string]http.Handler{
		"POST /acme.onmicrosoft.com/oauth2/v2.0/token": v.issue(application, map[string]any{"access_token": v.credential("azure"), "token_type": "Bearer", "expires_in": 3599}),
	})
	v.bearer("management.azure.com", "azure", pages(map[string]http.Handler{
		"GET /subscriptions": answering(`{"value": [{"subscriptionId": "1", "displayName": "welcome"}]}`),
	}))
}

// aws serves two services that verify signatures with AWS's signer.
func (v *vendors) aws() {
	for service, answer := range map[string]string{
		"sts": `<GetCallerIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><GetCallerIdentityResult><Arn>arn:aws:iam::1:user/real</Arn><UserId>U</UserId><Account>1</Account></GetCallerIdentityResult></GetCallerIdentityResponse>`,
		"s3":  `<ListAllMyBucketsResult><Owner><ID>1</ID></Owner><Buckets><Bucket><Name>acme-files</Name><CreationDate>2026-01-01T00:00:00Z</CreationDate></Bucket></Buckets></ListAllMyBucketsResult>`,
	} {
		host := service + ".eu-central-1.amazonaws.com"
		v.hosts[host] = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body, err := io.ReadAll(r.Body)
			if err == nil {
				err = signtest.Verify(r, body, signtest.Keys{ID: "AKIAREALKEY", Secret: v.credential("aws")}, "eu-central-1", service)
			}
			w.Header().Set("Content-Type", "text/xml")
			if err != nil {
				w.WriteHeader(http.StatusForbidden)
				fmt.Fprintf(w, "<ErrorResponse><Error><Code>SignatureDoesNotMatch</Code><Message>%s</Message></Error></ErrorResponse>", err)
				return
			}
			v.mu.Lock()
			v.accepted[host]++
			v.mu.Unlock()
			fmt.Fprint(w, answer)
		})
	}
}
