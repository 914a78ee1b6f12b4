package clients

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"path"
	"strings"
	"sync"
	"testing"

	"boxgate/e2e/harness"
)

// objectStore stores Git LFS uploads on a separate host, like GitHub's.
type objectStore struct {
	mu      sync.Mutex
	objects map[string][]byte
}

const objectHost = "github-cloud.githubusercontent.com"

func (o *objectStore) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	o.mu.Lock()
	defer o.mu.Unlock()
	id := path.Base(r.URL.Path)
	switch r.Method {
	case http.MethodPut:
		data, err := io.ReadAll(r.Body)
		if err == nil {
			o.objects[id] = data
		}
	default:
		_, _ = w.Write(o.objects[id])
	}
}

// batch answers the batch API of Git LFS with upload and download URLs.
func (o *objectStore) batch(w http.ResponseWriter, r *http.Request) {
	type object struct {
		OID     string                    `json:"oid"`
		Size    int64                     `json:"size"`
		Actions map[string]map[string]any `json:"actions,omitempty"`
	}
	var asked struct {
		Operation string
		Objects   []object
	}
	if err := json.NewDecoder(r.Body).Decode(&asked); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	for i := range asked.Objects {
		at := map[string]any{"href": "https://" + objectHost + "/" + asked.Objects[i].OID, "expires_in": 3600}
		asked.Objects[i].Actions = map[string]map[string]any{asked.Operation: at}
	}
	w.Header().Set("Content-Type", "application/vnd.git-lfs+json")
	_ = json.NewEncoder(w).Encode(map[string]any{"transfer": "basic", "objects": asked.Objects})
}

// TestRepositoriesOfGitHub: gh and Git LFS read and change exactly the repositories that the policy names, with a
// credential that is not in the box.
func TestRepositoriesOfGitHub(t *testing.T) {
	t.Parallel()
	w := harness.NewWorld(t, withClients(t))
	objects := &objectStore{objects: map[string][]byte{}}
	git := bareRepositories(t, "acme/web", "acme/tools", "acme/secret")
	v := newVendors(t)
	token := v.credential("github")
	v.hosts["github.com"] = v.accept("github.com", "Authorization", basic("x-access-token", token), http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case strings.HasSuffix(r.URL.Path, "/info/lfs/objects/batch"):
			objects.batch(w, r)
		case strings.HasSuffix(r.URL.Path, "/info/lfs/locks/verify"):
			answering(`{"ours": [], "theirs": []}`)(w, r)
		default:
			git.ServeHTTP(w, r)
		}
	}))
	v.hosts["api.github.com"] = v.accept("api.github.com", "Authorization", "token "+token, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answering(fmt.Sprintf(`{"asked": %q}`, r.Method+" "+r.URL.Path))(w, r)
	}))
	v.hosts[objectHost] = objects
	for i, host := range []string{"github.com", "api.github.com", objectHost} {
		if err := w.Net.AddHost(host, fmt.Sprint("198.51.100.", 160+i)); err != nil {
			t.Fatal(err)
		}
		if err := w.Net.ServeHTTP(host, v.hosts[host]); err != nil {
			t.Fatal(err)
		}
	}
	spec := harness.Custom("github.com", "api.github.com", objectHost)
	spec["repos"] = []map[string]string{{"name": "acme/web", "access": "read"}, {"name": "acme/tools", "access": "push"}}
	box := w.Create(map[string]any{"runtime": "clients", "network_policy": spec, "attach_headers": map[string]any{
		"github.com":     map[string]any{"placeholders": map[string]string{"GIT_TOKEN": token}},
		"api.github.com": map[string]any{"headers": map[string]string{"Authorization": "token " + token}},
		objectHost:       map[string]string{"X-Intercepted": "1"},
	}})
	w.MustSh(box, `git config --global user.name A && git config --global user.email a@example.com && git lfs install --skip-repo`)
	clone := "git clone -q https://x-access-token:$GIT_TOKEN@github.com/acme/NAME.git "
	for _, tt := range []struct {
		name, run string
		ok        bool
	}{
		{"gh reads", "GH_TOKEN=none gh api repos/acme/web", true},
		{"gh reads what is below", "GH_TOKEN=none gh api repos/acme/web/compare/main...topic", true},
		{"gh changes what is only read", "GH_TOKEN=none gh api -X POST repos/acme/web/issues -f title=x", false},
		{"gh changes", "GH_TOKEN=none gh api -X POST repos/acme/tools/issues -f title=x", true},
		{"gh changes who may do what", "GH_TOKEN=none gh api -X PUT repos/acme/tools/collaborators/me", false},
		{"gh reads another", "GH_TOKEN=none gh api repos/acme/secret", false},
		{"gh reads the user", "GH_TOKEN=none gh api user", false},
		{"gh by GraphQL", "GH_TOKEN=none gh repo view acme/tools", false},
		{"lfs pushes", clone + "tools && cd tools && git lfs track '*.bin' && echo welcome >a.bin && git add . && git commit -q -m more && git push -q origin HEAD:main", true},
		{"lfs clones", "cd $(mktemp -d) && " + clone + "again && grep welcome again/a.bin", true},
		{"lfs pushes to one that is read", clone + "web && cd web && git lfs track '*.bin' && echo welcome >a.bin && git add . && git commit -q -m more && git push -q origin HEAD:main", false},
	} {
		name := "tools"
		if strings.Contains(tt.run, "cd web") {
			name = "web"
		}
		out, code := w.Sh(box, strings.ReplaceAll(tt.run, "acme/NAME", "acme/"+name)+" 2>&1")
		if (code == 0) != tt.ok || !tt.ok && !strings.Contains(out, "403") {
			t.Errorf("%s: exit %d: %s", tt.name, code, out)
		}
		if strings.Contains(out, v.mark) {
			t.Errorf("%s: the box sees the credential: %s", tt.name, out)
		}
	}
	if len(objects.objects) != 1 {
		t.Errorf("%d objects were uploaded", len(objects.objects))
	}
}
