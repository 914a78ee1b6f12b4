package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/spf13/cobra"

	"boxgate/api"
)

// Render prints an answer of the admin API for people.
type Render func(io.Writer, json.RawMessage) error

// Call makes one request and prints the answer: the JSON itself with --json, else as rendered by render.
func (o *Options) Call(cmd *cobra.Command, method, path string, in any, render Render) error {
	client, err := o.Client()
	if err != nil {
		return err
	}
	var answer json.RawMessage
	if err := client.Do(cmd.Context(), method, path, in, &answer); err != nil {
		return err
	}
	return o.Show(cmd, answer, render)
}

// NameTaken extends a 409 for the name of a new box. If an existing box has the name, the error explains how to free or
// find it.
func NameTaken(ctx context.Context, client *api.Client, name string, err error) error {
	refused, ok := errors.AsType[*api.ResponseError](err)
	if !ok || refused.Status != http.StatusConflict || name == "" {
		return err
	}
	var box struct{ Name, Status string }
	switch {
	case client.Get(ctx, api.BoxPath(name), &box) != nil || box.Name != name:
		return err
	case box.Status == string(api.StatusGone):
		return fmt.Errorf("%w, and its sandbox has ended: `gateway box detach %s` frees the name, `gateway box reattach %s` goes on with the box", err, name, name)
	}
	return fmt.Errorf("%w; see `gateway box get %s`, and choose another --name", err, name)
}

// Show prints an answer like [Options.Call].
func (o *Options) Show(cmd *cobra.Command, answer json.RawMessage, render Render) error {
	if o.JSON {
		_, err := fmt.Fprintln(cmd.OutOrStdout(), string(answer))
		return err
	}
	return render(cmd.OutOrStdout(), answer)
}

// Decoded makes a [Render] from a function that prints a type.
func Decoded[T any](render func(io.Writer, T) error) Render {
	return func(w io.Writer, data json.RawMessage) error {
		var v T
		if err := json.Unmarshal(data, &v); err != nil {
			return fmt.Errorf("cannot parse the gateway's answer: %w", err)
		}
		return render(w, v)
	}
}

// Silent is a [Render] without output.
func Silent(io.Writer, json.RawMessage) error { return nil }

// Indented is a [Render] that prints the JSON itself, indented.
func Indented(w io.Writer, data json.RawMessage) error {
	out, err := json.MarshalIndent(data, "", "  ")
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(w, string(out))
	return err
}
