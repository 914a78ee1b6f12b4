package command

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"
	"golang.org/x/sys/unix"

	"boxgate/cmd/gateway/command/cli"
	"boxgate/config"
	"boxgate/internal/buildinfo"
	"boxgate/preflight"
	"boxgate/store"
)

const supportHelp = `Collects what a bug report needs in one archive: version and kernel, the findings of ` + "`gateway check`" + `, the state of the gateway,
numbers about each box, and the metrics.

It contains no secrets and none of the names, hosts, paths and rules of boxes: of the configuration only numbers, switches and
defaults, of policies only the number of entries, of secrets only the kind of the source. Findings can name paths, addresses and
interfaces of this host: read the files before you send them. With --json, prints the content instead.`

// supportFile is one file of the archive.
type supportFile struct {
	name    string
	content []byte
}

// newSupportCommand is `gateway support`.
func newSupportCommand(o *cli.Options) *cobra.Command {
	return &cobra.Command{
		Use: "support [FILE]", Short: "Write an archive without secrets for a bug report", Long: supportHelp, Args: cli.MaxArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, cancel := context.WithTimeout(cmd.Context(), time.Minute)
			defer cancel()
			end := o.Waiting("collecting")
			files := supportFiles(ctx, o)
			end()
			if o.JSON {
				all := map[string]json.RawMessage{}
				for _, f := range files {
					if all[f.name] = f.content; !json.Valid(f.content) {
						all[f.name], _ = json.Marshal(string(f.content)) // a string can always be encoded
					}
				}
				return cli.WriteJSON(cmd.OutOrStdout(), all)
			}
			path := "boxgate-support-" + time.Now().Format("20060102-150405") + ".tar.gz"
			if len(args) > 0 {
				path = args[0]
			}
			if _, err := writeNew(path, func(w io.Writer) (int64, error) { return 0, writeArchive(w, files) }); err != nil {
				return err
			}
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "%s contains %s. Read it before you send it (tar -xzOf %s), and add the lines of the gateway's log about the problem.\n",
				path, cli.Count(len(files), "file", "files"), path)
			return err
		},
	}
}

func writeArchive(w io.Writer, files []supportFile) error {
	zip := gzip.NewWriter(w)
	out := tar.NewWriter(zip)
	for _, f := range files {
		if err := out.WriteHeader(&tar.Header{Name: "boxgate-support/" + f.name, Mode: 0o600, Size: int64(len(f.content)), ModTime: time.Now()}); err != nil {
			return err
		}
		if _, err := out.Write(f.content); err != nil {
			return err
		}
	}
	return errors.Join(out.Close(), zip.Close())
}

// supportFiles collects the files. Parts that cannot be read contain the error instead.
func supportFiles(ctx context.Context, o *cli.Options) []supportFile {
	cfg, configErr := o.Load()
	parts := map[string]func() (any, error){
		"about.json":         func() (any, error) { return aboutHost(), nil },
		"configuration.json": func() (any, error) { return redactedConfiguration(cfg) },
		"gateway.json":       func() (any, error) { return redactedStatus(ctx, o) },
		"boxes.json":         func() (any, error) { return redactedBoxes(ctx, o) },
	}
	if o.Admin == "" {
		parts["check.json"] = func() (any, error) { return redactedFindings(allFindings(ctx, o)), nil }
	}
	var files []supportFile
	for _, name := range slices.Sorted(maps.Keys(parts)) {
		part, err := parts[name]()
		if err != nil {
			if configErr != nil { // the client reads the configuration, too
				err = redactedMistakes(configErr)
			}
			part = map[string]string{"error": err.Error()}
		}
		content, err := json.MarshalIndent(part, "", "  ")
		if err != nil {
			content, _ = json.Marshal(map[string]string{"error": err.Error()}) // a string can always be encoded
		}
		files = append(files, supportFile{name, append(content, '\n')})
	}
	if o.Admin == "" && configErr == nil && cfg.Metrics.Listen != "" {
		files = append(files, supportFile{"metrics.txt", readMetrics(ctx, cfg.Metrics.Listen)})
	}
	return withoutSecrets(files, knownSecrets(cfg))
}

// about describes the program and the host.
type about struct {
	Build        buildinfo.Info `json:"build"`
	Time         time.Time      `json:"time"`
	OS           string         `json:"os"`
	Kernel       string         `json:"kernel"`
	Architecture string         `json:"architecture"`
	CPUs         int            `json:"cpus"`
	Root         bool           `json:"root"`
}

func aboutHost() about {
	var uts unix.Utsname
	_ = unix.Uname(&uts) // then the release is empty
	a := about{Build: buildinfo.Get(), Time: time.Now().UTC(), Kernel: unix.ByteSliceToString(uts.Release[:]), Architecture: runtime.GOARCH, CPUs: runtime.NumCPU(), Root: os.Geteuid() == 0}
	release, _ := os.ReadFile("/etc/os-release")
	for line := range strings.Lines(string(release)) {
		if name, ok := strings.CutPrefix(line, "PRETTY_NAME="); ok {
			a.OS = strings.Trim(strings.TrimSpace(name), `"`)
		}
	}
	return a
}

// mistake matches the key of an error of the configuration, and the line. Variables are quoted with their values after "=".
var mistake = regexp.MustCompile(`^[^:=]*|line [0-9]+`)

// redactedMistakes returns the keys and the lines of the errors of a configuration. Their texts quote values, which may be
// secrets in the wrong place.
func redactedMistakes(err error) error {
	var keys []string
	for line := range strings.Lines(err.Error()) {
		keys = append(keys, strings.Join(mistake.FindAllString(strings.TrimSpace(line), -1), " "))
	}
	return errors.New("mistakes at: " + strings.Join(keys, "; "))
}

// redactedFindings returns findings as `gateway check --json` prints them, except for the mistakes of the configuration.
func redactedFindings(findings []preflight.Finding) []hostFinding {
	list := []hostFinding{}
	for _, f := range findings {
		if strings.HasPrefix(f.What, configurationFinding) && f.Err != nil {
			f.Err = redactedMistakes(f.Err)
		}
		if f.Err == nil {
			list = append(list, hostFinding{What: f.What})
			continue
		}
		for _, err := range preflight.Errors(f.Err) {
			if errors.As(err, new(preflight.Warning)) {
				list = append(list, hostFinding{What: f.What, Warning: err.Error()})
			} else {
				list = append(list, hostFinding{What: f.What, Error: err.Error()})
			}
		}
	}
	return list
}

// redactedStatus returns the state of the gateway without the names of boxes, and the kinds of its secrets.
func redactedStatus(ctx context.Context, o *cli.Options) (any, error) {
	client, err := o.Client()
	if err != nil {
		return nil, err
	}
	var status map[string]any
	if err := client.Get(ctx, "/v2/gateway", &status); err != nil {
		return nil, err
	}
	if denials, ok := status["denials"].(map[string]any); ok {
		delete(denials, "boxes")
	}
	var list struct{ Secrets []secretAnswer }
	if err := client.Get(ctx, "/v2/secrets", &list); err != nil {
		return nil, err
	}
	kinds := map[string]int{}
	for _, s := range list.Secrets {
		kind, _, _ := strings.Cut(s.Source, " ")
		kind, _, _ = strings.Cut(kind, ":")
		switch {
		case !s.Valid:
			kind += ", unavailable"
		case s.Stale:
			kind += ", stale"
		}
		kinds[kind]++
	}
	status["secrets"] = kinds
	return status, nil
}

// supportBox is a box without anything that its users chose.
type supportBox struct {
	ID            string           `json:"id"`
	Status        string           `json:"status"`
	Size          string           `json:"size,omitempty"`
	Ephemeral     bool             `json:"ephemeral"`
	Failed        bool             `json:"failed"` // it has an error
	Attached      string           `json:"attached,omitempty"`
	CreatedAt     int64            `json:"created_at"`
	Limits        map[string]int64 `json:"limits,omitempty"`
	Usage         json.RawMessage  `json:"usage,omitempty"`
	PolicyMode    string           `json:"policy_mode"`
	PolicyEntries map[string]int   `json:"policy_entries"` // number of entries of each list
	PolicyVersion uint64           `json:"policy_version"`
	NamedPolicy   bool             `json:"named_policy"`
}

// redactedBoxes returns the boxes without names, labels, hosts and rules.
func redactedBoxes(ctx context.Context, o *cli.Options) (any, error) {
	client, err := o.Client()
	if err != nil {
		return nil, err
	}
	var boxes []struct {
		supportBox
		Error         string
		Attached      *struct{ Kind string } `json:"attached"`
		NetworkPolicy map[string]any         `json:"network_policy"`
		NamedPolicy   string                 `json:"named_policy"`
	}
	if err := client.Get(ctx, "/v2/box", &boxes); err != nil {
		return nil, err
	}
	out := []supportBox{}
	for _, b := range boxes {
		box := b.supportBox
		box.Failed, box.NamedPolicy, box.PolicyEntries = b.Error != "", b.NamedPolicy != "", map[string]int{}
		if b.Attached != nil {
			box.Attached = b.Attached.Kind
		}
		box.PolicyMode, _ = b.NetworkPolicy["mode"].(string)
		for name, value := range b.NetworkPolicy {
			if list, ok := value.([]any); ok {
				box.PolicyEntries[name] = len(list)
			}
		}
		out = append(out, box)
	}
	return out, nil
}

// readMetrics fetches the metrics of this host's gateway, or returns the error as text.
func readMetrics(ctx context.Context, listen string) []byte {
	if strings.HasPrefix(listen, ":") {
		listen = "127.0.0.1" + listen
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+listen+"/metrics", nil)
	if err != nil {
		return []byte("# cannot be read\n")
	}
	client := http.Client{Timeout: 10 * time.Second}
	resp, err := client.Do(req)
	if err != nil {
		return []byte("# cannot be read: " + strings.ReplaceAll(err.Error(), "\n", " ") + "\n")
	}
	defer resp.Body.Close()
	const most = 8 << 20
	text, err := io.ReadAll(io.LimitReader(resp.Body, most))
	if err != nil {
		return []byte("# cannot be read\n")
	}
	return text
}

// knownSecrets returns the secrets that this process can read itself.
func knownSecrets(cfg config.Config) (all []string) {
	all = []string{os.Getenv(config.APIKeyVariable), os.Getenv(config.PassphraseVariable), os.Getenv(config.NewPassphraseVariable)}
	for _, file := range []string{"api-key", "api-key.next", store.KeyFileName} {
		text, _ := os.ReadFile(filepath.Join(cfg.StateDir, file))
		for line := range strings.Lines(string(text)) {
			all = append(all, strings.TrimSpace(line))
		}
	}
	for _, s := range cfg.Secrets.Sources {
		all = append(all, s.Value.Reveal())
		if s.Env != "" {
			all = append(all, os.Getenv(s.Env))
		}
	}
	const shortest = 6 // shorter texts occur by chance
	return slices.DeleteFunc(all, func(s string) bool { return len(s) < shortest || strings.HasPrefix(s, "#") })
}

// withoutSecrets leaves out the content of files that contain a secret. The files are made without secrets; this is a second
// check.
func withoutSecrets(files []supportFile, secrets []string) []supportFile {
	for i, f := range files {
		for _, s := range secrets {
			if bytes.Contains(f.content, []byte(s)) {
				files[i].content = []byte(`{"error": "left out, because it contained a secret: please report that too"}` + "\n")
			}
		}
	}
	return files
}

// shownKeys are the configuration keys whose text is shown even if it is not the default: their values are words of the
// gateway.
var shownKeys = map[string]bool{
	"store.kind": true, "proxy.deny": true, "ingress.names": true, "ingress.tls.mode": true, "launcher.runtime": true, "launcher.disk.mode": true,
	"policy.default": true, "policy.ceiling": true, "policy.audit": true, "log.level": true, "log.format": true,
}

// redactedConfiguration returns the configuration with its numbers, switches and defaults. Any other text is replaced by
// "[set]", and lists and maps of the operator by their length.
func redactedConfiguration(cfg config.Config) (any, error) {
	now, err := asMap(cfg)
	if err != nil {
		return nil, err
	}
	preset, err := asMap(config.Default())
	if err != nil {
		return nil, err
	}
	now["secrets"] = len(cfg.Secrets.Sources)
	return redact("", now, preset), nil
}

// asMap returns a configuration as generic YAML.
func asMap(cfg config.Config) (out map[string]any, err error) {
	text, err := yaml.Marshal(cfg)
	if err != nil {
		return nil, errors.New("the configuration cannot be encoded")
	}
	return out, yaml.Unmarshal(text, &out)
}

// quantity matches durations and sizes.
var quantity = regexp.MustCompile(`^([0-9.]+(ns|µs|ms|s|m|h|d|B|KiB|MiB|GiB|TiB)?)+$`)

// isQuantity reports whether a text is a duration or a size, as its default is.
func isQuantity(text string, preset any) bool {
	before, ok := preset.(string)
	return ok && quantity.MatchString(before) && quantity.MatchString(text)
}

// redact returns the value of a key, given the default.
func redact(key string, value, preset any) any {
	switch v := value.(type) {
	case map[string]any:
		defaults, ok := preset.(map[string]any)
		if !ok || key == "launcher.images" {
			return len(v)
		}
		out := map[string]any{}
		for name, field := range v {
			at := name
			if key != "" {
				at = key + "." + name
			}
			out[name] = redact(at, field, defaults[name])
		}
		return out
	case []any:
		return len(v)
	case string:
		if v == "" || shownKeys[key] || value == preset || isQuantity(v, preset) {
			return v
		}
		return "[set]"
	}
	return value
}
