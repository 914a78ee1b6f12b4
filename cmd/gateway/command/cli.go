package command

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"boxgate/api"
)

// client connects to the admin API of the running gateway: at the address of --admin or BOXGATE_ADMIN, else the socket
// of the configuration; with the key of BOXGATE_API_KEY, else the one written at the first start.
func (o *globalOptions) client() (*api.Client, error) {
	cfg, err := o.load()
	if err != nil {
		return nil, err
	}
	address := o.admin
	if address == "" {
		address = cfg.Admin.Socket
	}
	if address == "" {
		address = "http://" + cfg.Admin.Listen
	}
	key := os.Getenv("BOXGATE_API_KEY")
	if key == "" {
		data, err := os.ReadFile(filepath.Join(cfg.StateDir, "api-key"))
		if err != nil {
			return nil, fmt.Errorf("no API key: set BOXGATE_API_KEY, or run as root on the gateway's host (%w)", err)
		}
		key = strings.TrimSpace(string(data))
	}
	return api.NewClient(address, key), nil
}

// call makes one request and prints the answer: the JSON itself with --json, else as rendered by render.
func (o *globalOptions) call(cmd *cobra.Command, method, path string, in any, render func(io.Writer, json.RawMessage) error) error {
	client, err := o.client()
	if err != nil {
		return err
	}
	var answer json.RawMessage
	if err := client.Do(cmd.Context(), method, path, in, &answer); err != nil {
		return err
	}
	if o.json {
		_, err := fmt.Fprintln(cmd.OutOrStdout(), string(answer))
		return err
	}
	return render(cmd.OutOrStdout(), answer)
}

// decoded adapts a function over a type to the render function of [globalOptions.call].
func decoded[T any](render func(io.Writer, T) error) func(io.Writer, json.RawMessage) error {
	return func(w io.Writer, data json.RawMessage) error {
		var v T
		if err := json.Unmarshal(data, &v); err != nil {
			return fmt.Errorf("cannot parse the gateway's answer: %w", err)
		}
		return render(w, v)
	}
}

// silent renders nothing.
func silent(io.Writer, json.RawMessage) error { return nil }

// indented renders the JSON itself, indented.
func indented(w io.Writer, data json.RawMessage) error {
	out, err := json.MarshalIndent(data, "", "  ")
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(w, string(out))
	return err
}

// table writes rows in aligned columns; the first row is the heading.
func table(w io.Writer, rows ...[]string) error {
	tw := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	for _, row := range rows {
		fmt.Fprintln(tw, strings.Join(row, "\t"))
	}
	return tw.Flush()
}

// argument returns the JSON of a command-line value: the value itself, the file after "@", or standard input for "-".
func argument(value string, stdin io.Reader) (json.RawMessage, error) {
	data := []byte(value)
	var err error
	switch {
	case value == "-":
		data, err = io.ReadAll(stdin)
	case strings.HasPrefix(value, "@"):
		data, err = os.ReadFile(value[1:])
	case value == "allow-all" || value == "deny-all":
		data, err = json.Marshal(map[string]string{"mode": value})
	}
	if err != nil {
		return nil, err
	}
	if !json.Valid(data) {
		return nil, usageError{errors.New("this is not JSON; give the JSON itself, @FILE, or - for standard input")}
	}
	return data, nil
}

// warningsOf prints the warnings of an answer to stderr.
func warningsOf(cmd *cobra.Command, warnings []problem) {
	for _, p := range warnings {
		fmt.Fprintf(cmd.ErrOrStderr(), "warning: %s: %s\n", p.Pointer, p.Message)
	}
}

// problem is a warning as the API returns it.
type problem struct{ Pointer, Message string }

// writeJSON prints v as one line of JSON.
func writeJSON(w io.Writer, v any) error { return json.NewEncoder(w).Encode(v) }
