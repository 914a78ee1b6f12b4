package command

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"boxgate/api"
	"boxgate/cmd/gateway/command/cli"
	"boxgate/config"
)

const boxHARHelp = `Record the requests of a box that the gateway reads, as an HTTP archive (HAR 1.2): intercepted HTTPS, and plain HTTP.

The requests are those that the box sends, before header rules apply; headers that rules set appear by their names only. Credentials and
cookies that the box itself sends are redacted, and bodies are left out, unless asked for. Browsers and other tools open the archive.

It ends after the time of --for or with Ctrl-C, and is complete then.`

// boxHAR holds the flags of `gateway box har`.
type boxHAR struct {
	during      time.Duration
	bodies      config.Size
	credentials bool
	output      string
}

// newBoxHAR is `gateway box har`.
func newBoxHAR(o *cli.Options) *cobra.Command {
	var h boxHAR
	cmd := &cobra.Command{
		Use: "har BOX", Short: "Record the requests of a box as an HTTP archive", Long: boxHARHelp, Args: cli.ExactArgs(1),
		Example: "  gateway box har web-1 --for 1m -o web-1.har\n  gateway box har web-1 --bodies 64KiB | jq '.log.entries[].request.url'",
		RunE: func(cmd *cobra.Command, args []string) error {
			client, err := o.Client()
			if err != nil {
				return err
			}
			return h.run(cmd, client, args[0])
		},
	}
	cli.MapFields(cmd, map[string]string{"/seconds": "--for", "/body_bytes": "--bodies"})
	cli.Duration(cmd.Flags(), &h.during, "for", 5*time.Minute, "how long to record, at most 1h")
	cmd.Flags().TextVar(&h.bodies, "bodies", config.Size(0), "how much of each body to record, at most 1MiB")
	cmd.Flags().BoolVar(&h.credentials, "with-credentials", false, "show credentials and cookies that the box sends and gets")
	cmd.Flags().StringVarP(&h.output, "output", "o", "", "new file for the archive (default: standard output)")
	return cmd
}

func (h *boxHAR) run(cmd *cobra.Command, client *api.Client, box string) error {
	in, err := json.Marshal(map[string]any{
		"seconds": int64(h.during.Round(time.Second) / time.Second), "body_bytes": int64(h.bodies), "credentials": h.credentials,
	})
	if err != nil {
		return err
	}
	resp, err := client.Stream(cmd.Context(), "POST", api.BoxPath(box, "har"), "application/json", bytes.NewReader(in))
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	a := archive{Reader: resp.Body, begun: func() { fmt.Fprintln(cmd.ErrOrStderr(), "Recording; end with Ctrl-C.") }}
	var cut error
	save := func(w io.Writer) (int64, error) {
		err := a.copyTo(w)
		if errors.Is(err, errCut) {
			cut, err = err, nil
		}
		return 0, err
	}
	if h.output == "" {
		_, err = save(cmd.OutOrStdout())
	} else {
		_, err = writeNew(h.output, save)
	}
	if err != nil {
		return err
	}
	fmt.Fprintln(cmd.ErrOrStderr(), a.summary())
	if cmd.Context().Err() != nil { // Ctrl-C is a regular end
		return nil
	}
	return cut
}

// archive is an archive as the gateway sends it.
type archive struct {
	io.Reader
	begun   func()
	entries int
	ending  struct {
		Ended   string `json:"ended"`
		Dropped int    `json:"dropped"`
	}
}

// errCut is returned for an archive that has ended early.
var errCut = errors.New("the connection to the gateway broke off, and the archive ends there")

// copyTo copies the archive entry by entry, so that the copy is a whole document even if the response breaks off. Then the error is
// [errCut].
func (a *archive) copyTo(w io.Writer) error {
	in := json.NewDecoder(a.Reader)
	var head struct {
		Version, Creator json.RawMessage
	}
	if err := a.readHead(in, &head.Version, &head.Creator); err != nil {
		return err
	}
	if _, err := fmt.Fprintf(w, `{"log":{"version":%s,"creator":%s,"entries":[`, head.Version, head.Creator); err != nil {
		return err
	}
	a.begun()
	cut := a.copyEntries(in, w)
	if cut != nil && !errors.Is(cut, errCut) {
		return cut
	}
	end, err := json.Marshal(a.ending)
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintf(w, "\n],\"_boxgate\":%s}}\n", end); err != nil {
		return err
	}
	return cut
}

// readHead reads up to the first entry.
func (a *archive) readHead(in *json.Decoder, version, creator *json.RawMessage) error {
	for {
		token, err := in.Token()
		switch {
		case err != nil:
			return fmt.Errorf("the gateway sent no archive: %w", err)
		case token == "version":
			err = in.Decode(version)
		case token == "creator":
			err = in.Decode(creator)
		case token == "entries":
			_, err = in.Token()
			return err
		}
		if err != nil {
			return err
		}
	}
}

// copyEntries copies the entries, and reads the ending.
func (a *archive) copyEntries(in *json.Decoder, w io.Writer) error {
	a.ending.Ended = "interrupted"
	for separator := "\n"; in.More(); separator = ",\n" {
		var entry json.RawMessage
		if err := in.Decode(&entry); err != nil {
			return fmt.Errorf("%w: %w", errCut, err)
		}
		if _, err := fmt.Fprintf(w, "%s%s", separator, entry); err != nil {
			return err
		}
		a.entries++
	}
	for {
		token, err := in.Token()
		if err != nil {
			return fmt.Errorf("%w: %w", errCut, err)
		}
		if token == "_boxgate" {
			return in.Decode(&a.ending)
		}
	}
}

// endings explains why a capture has ended before its time.
var endings = map[string]string{
	"interrupted": "", "time": "", "entries": "; it ended early, with the maximum number of requests", "bytes": "; it ended early, at its maximum size",
	"gateway_stopping": "; it ended early, as the gateway stops", "box_deleted": "; it ended early, as the box was deleted",
	"api_key_ended": "; it ended early, as the API key stopped working", "secrets": "; it ended early, as the gateway sent more secrets than it can mask",
}

func (a *archive) summary() string {
	text := "Recorded " + cli.Count(a.entries, "request", "requests") + endings[a.ending.Ended] + "."
	if a.ending.Dropped > 0 {
		text += fmt.Sprintf(" %s missing: they came faster than they could be written, or the box's memory in the gateway was short.",
			cli.Count(a.ending.Dropped, "request is", "requests are"))
	}
	return text
}
