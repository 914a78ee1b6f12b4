package export

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"

	"boxgate/audit"
	"boxgate/policy/name"
)

// webhook sends batches of events, signed according to Standard Webhooks 1.0.0 (https://www.standardwebhooks.com).
type webhook struct {
	secret func(ctx context.Context, name string) (name.Secret, error)
	key    string // name of the secret with the signing keys
}

// webhookType is the type of every payload.
const webhookType = "boxgate.decisions"

// payload is the body of a webhook.
type payload struct {
	Type      string    `json:"type"`
	Timestamp time.Time `json:"timestamp"` // of the first decision
	Data      decisions `json:"data"`
}

type decisions struct {
	Host      string        `json:"host,omitempty"`
	HostName  string        `json:"host_name,omitempty"`
	Run       string        `json:"run,omitempty"`
	Version   string        `json:"version,omitempty"`
	Decisions []audit.Event `json:"decisions"`
}

func (webhook) body(from Origin, events []audit.Event) ([]byte, error) {
	p := payload{Type: webhookType, Data: decisions{from.Host, from.Name, from.Run, from.Version, events}}
	if len(events) > 0 {
		p.Timestamp = events[0].Time.UTC()
	}
	return json.Marshal(p)
}

// sign signs the ID of the batch, which is the same for each retry, the time, and the body. It signs with each key in
// the secret, so that a receiver can change from one to the next.
func (w webhook) sign(ctx context.Context, h http.Header, id string, body []byte) error {
	secret, err := w.secret(ctx, w.key)
	if err != nil {
		return err
	}
	return SignWebhook(h, secret, id, body)
}

// SignWebhook signs a webhook with each of the keys in a secret, according to Standard Webhooks 1.0.0. id identifies the message;
// it is the same for each attempt.
func SignWebhook(h http.Header, secret name.Secret, id string, body []byte) error {
	keys, err := signingKeys(secret)
	if err != nil {
		return err
	}
	at := strconv.FormatInt(time.Now().Unix(), 10)
	var signatures []string
	for _, key := range keys {
		mac := hmac.New(sha256.New, key)
		mac.Write([]byte(id + "." + at + "."))
		mac.Write(body)
		signatures = append(signatures, "v1,"+base64.StdEncoding.EncodeToString(mac.Sum(nil)))
	}
	h.Set("Webhook-Id", id)
	h.Set("Webhook-Timestamp", at)
	h.Set("Webhook-Signature", strings.Join(signatures, " "))
	return nil
}

// maxKeys is the maximum number of signing keys in use at the same time.
const maxKeys = 4

var errKey = errors.New(`the signing key is not "whsec_" and 24 to 64 bytes in base64, or up to 4 such keys with spaces between them`)

// signingKeys parses the keys of a secret.
func signingKeys(secret name.Secret) (keys [][]byte, err error) {
	for text := range strings.FieldsSeq(secret.Reveal()) {
		key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(text, "whsec_"))
		if err != nil || len(key) < 24 || len(key) > 64 {
			return nil, errKey
		}
		keys = append(keys, key)
	}
	if len(keys) == 0 || len(keys) > maxKeys {
		return nil, errKey
	}
	return keys, nil
}

// webhookAttempts is the number of attempts if the receiver answers with an error of its own: some four minutes.
const webhookAttempts = 10

func (webhook) interpret(res *http.Response, _ []byte) answer {
	switch status := res.StatusCode; {
	case status >= 200 && status < 300:
		return answer{}
	case status == http.StatusGone || status == http.StatusRequestEntityTooLarge:
		return answer{err: statusError(res), noRetry: true}
	case isRetryable(status):
		return answer{err: statusError(res), retryAfter: retryAfter(res.Header)}
	default:
		return answer{err: statusError(res), retryAfter: retryAfter(res.Header), maxAttempts: webhookAttempts}
	}
}
