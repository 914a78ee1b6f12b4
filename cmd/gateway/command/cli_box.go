package command

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"boxgate/api"
)

// boxAnswer has the fields of a box that the commands show.
type boxAnswer struct {
	ID, Name, Status, Size, Runtime, IPv4, IPv6, Error string
	NetworkPolicy                                      struct{ Mode string } `json:"network_policy"`
	Warnings                                           []problem
}

func (b boxAnswer) row() []string {
	return []string{b.ID, b.Name, b.Status, b.Size, b.NetworkPolicy.Mode, b.IPv4, b.IPv6}
}

var boxHeading = []string{"ID", "NAME", "STATUS", "SIZE", "POLICY", "IPV4", "IPV6"}

// newBoxCommand is `gateway box`.
func newBoxCommand(o *globalOptions) *cobra.Command {
	cmd := group("box", "Create, list, use and remove boxes")
	cmd.AddCommand(newBoxCreate(o), newBoxList(o), newBoxGet(o), newBoxExec(o), newBoxSelfTest(o), newBoxRemove(o), newBoxAttach(o), newBoxDetach(o))
	return cmd
}

// group is a command that only has subcommands.
func group(use, short string) *cobra.Command {
	return &cobra.Command{
		Use: use, Short: short,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usageError{fmt.Errorf("unknown command %q for %q", args[0], cmd.CommandPath())}
			}
			return cmd.Help()
		},
	}
}

func newBoxCreate(o *globalOptions) *cobra.Command {
	var name, size, runtime, policy, headers string
	var env []string
	cmd := &cobra.Command{
		Use:   "create",
		Short: "Create a box and print it",
		Args:  exactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			body := map[string]any{}
			for key, value := range map[string]string{"name": name, "size": size, "runtime": runtime} {
				if value != "" {
					body[key] = value
				}
			}
			for key, value := range map[string]string{"network_policy": policy, "attach_headers": headers} {
				if value == "" {
					continue
				}
				read := argument
				if key == "attach_headers" {
					read = document
				}
				data, err := read(value, cmd.InOrStdin())
				if err != nil {
					return fmt.Errorf("--%s: %w", key, err)
				}
				body[key] = data
			}
			vars := map[string]string{}
			for _, e := range env {
				k, v, ok := strings.Cut(e, "=")
				if !ok {
					return usageError{fmt.Errorf("--env %q is not NAME=VALUE", e)}
				}
				vars[k] = v
			}
			if len(vars) > 0 {
				body["env_vars"] = vars
			}
			return o.call(cmd, "POST", "/v2/box", body, decoded(func(w io.Writer, b boxAnswer) error {
				warningsOf(cmd, b.Warnings)
				return table(w, boxHeading, b.row())
			}))
		},
	}
	f := cmd.Flags()
	f.StringVar(&name, "name", "", "a name of your choice")
	f.StringVar(&size, "size", "", "small (2 CPU, 4 GB), medium (4, 8) or large (8, 16)")
	f.StringVar(&runtime, "runtime", "", "runtime name of launcher.images (default: default)")
	f.StringVar(&policy, "policy", "", "network policy: JSON, @FILE, -, allow-all or deny-all (default: allow-all)")
	f.StringVar(&headers, "headers", "", `header rules as for "gateway headers set": JSON or YAML, @FILE or -; a file keeps secrets out of the process list`)
	f.StringArrayVar(&env, "env", nil, "NAME=VALUE for every command in the box")
	return cmd
}

func newBoxList(o *globalOptions) *cobra.Command {
	return &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List the boxes", Args: exactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.call(cmd, "GET", "/v2/box", nil, decoded(func(w io.Writer, boxes []boxAnswer) error {
				rows := [][]string{boxHeading}
				for _, b := range boxes {
					rows = append(rows, b.row())
				}
				return table(w, rows...)
			}))
		},
	}
}

func newBoxGet(o *globalOptions) *cobra.Command {
	return &cobra.Command{
		Use: "get BOX", Short: "Show one box", Args: exactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.call(cmd, "GET", api.BoxPath(args[0]), nil, indented)
		},
	}
}

func newBoxRemove(o *globalOptions) *cobra.Command {
	return &cobra.Command{
		Use: "rm BOX...", Short: "Stop boxes and remove everything that belongs to them", Args: minArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			for _, box := range args {
				if err := o.call(cmd, "DELETE", api.BoxPath(box), nil, silent); err != nil {
					return fmt.Errorf("%s: %w", box, err)
				}
			}
			return nil
		},
	}
}

func newBoxExec(o *globalOptions) *cobra.Command {
	var dir string
	cmd := &cobra.Command{
		Use:   "exec BOX -- COMMAND [ARG...]",
		Short: "Run a command in a box; its exit status becomes this command's",
		Args:  minArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			client, err := o.client()
			if err != nil {
				return err
			}
			req := api.ExecRequest{Command: args[1:], Dir: dir}
			status, err := client.Exec(cmd.Context(), args[0], req, cmd.OutOrStdout(), cmd.ErrOrStderr())
			if err == nil && status != 0 {
				err = exitError{status}
			}
			return err
		},
	}
	cmd.Flags().StringVar(&dir, "dir", "", "working directory (default: /workspace/home)")
	return cmd
}
