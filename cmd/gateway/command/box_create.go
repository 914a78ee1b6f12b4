package command

import (
	"encoding/json"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"boxgate/cmd/gateway/command/cli"
)

// boxCreate holds the flags of `gateway box create`.
type boxCreate struct {
	name, size, runtime, policy, headers, snapshot string
	env, sources, limits, labels                   []string
}

func newBoxCreate(o *cli.Options) *cobra.Command {
	var c boxCreate
	cmd := &cobra.Command{
		Use:   "create",
		Short: "Create a box and print it",
		Args:  cli.ExactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			body, err := c.body(cmd.InOrStdin())
			if err != nil {
				return err
			}
			path := "/v2/box"
			if c.snapshot != "" {
				path, body["snapshot_id"] = path+"/from-snapshot", c.snapshot
			}
			client, err := o.Client()
			if err != nil {
				return err
			}
			stop := showImageProgress(cmd.Context(), client, c.name, cmd.ErrOrStderr())
			var answer json.RawMessage
			err = client.Do(cmd.Context(), "POST", path, body, &answer)
			stop()
			if err != nil {
				return cli.NameTaken(cmd.Context(), client, c.name, err)
			}
			return o.Show(cmd, answer, newBoxAnswer(cmd))
		},
	}
	cli.MapFields(cmd, sentByBox)
	cli.MapFields(cmd, map[string]string{"/env_vars": "--env=", "/snapshot_id": "--from-snapshot"})
	f := cmd.Flags()
	f.StringVar(&c.name, "name", "", "a name of your choice")
	f.StringVar(&c.size, "size", "", "small (2 CPU, 4 GB), medium (4, 8) or large (8, 16)")
	f.StringVar(&c.runtime, "runtime", "", "name of a runtime in launcher.images (default: default)")
	f.StringVar(&c.policy, "policy", "", "network policy: "+cli.BoxPolicyHelp+" (default: the gateway's policy.default)")
	f.StringVar(&c.headers, "headers", "", `header rules as for "gateway headers set": JSON or YAML, @FILE or -; a file keeps secrets out of the process list`)
	f.StringVar(&c.snapshot, "from-snapshot", "", "ID of a snapshot with the files of the box; also its size and policy unless they are given")
	f.StringArrayVar(&c.env, "env", nil, "NAME=VALUE for every command in the box")
	f.StringArrayVar(&c.labels, "label", nil, labelHelp)
	f.StringArrayVar(&c.sources, "source", nil, sourceHelp)
	f.StringArrayVar(&c.limits, "limit", nil, limitHelp)
	return cmd
}

func (c *boxCreate) body(stdin io.Reader) (boxBody, error) {
	body := boxBody{}
	body.setText(map[string]string{"name": c.name, "size": c.size, "runtime": c.runtime})
	if err := body.setNetwork(c.policy, c.headers, stdin); err != nil {
		return nil, err
	}
	body.setLabels(c.labels)
	body.setSources(c.sources)
	if err := body.setLimits(c.limits); err != nil {
		return nil, err
	}
	vars := map[string]string{}
	for _, e := range c.env {
		k, v, ok := strings.Cut(e, "=")
		if !ok {
			return nil, cli.Usagef("--env %q is not NAME=VALUE", e)
		}
		vars[k] = v
	}
	if len(vars) > 0 {
		body["env_vars"] = vars
	}
	return body, nil
}
