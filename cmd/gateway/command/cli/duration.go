package cli

import (
	"time"

	"github.com/spf13/pflag"

	"boxgate/api"
)

// Duration defines a duration flag in the syntax of [api.ParseDuration], such as 10m or 7d.
func Duration(f *pflag.FlagSet, d *time.Duration, name string, preset time.Duration, usage string) {
	*d = preset
	f.Var((*duration)(d), name, usage)
}

type duration time.Duration

// Set implements [pflag.Value].
func (d *duration) Set(text string) error {
	parsed, err := api.ParseDuration(text)
	if err == nil {
		*d = duration(parsed)
	}
	return err
}

// Type implements [pflag.Value].
func (*duration) Type() string { return "duration" }

// String implements [pflag.Value]. It returns "" for zero, so that the help does not show it as the default.
func (d *duration) String() string {
	if *d == 0 {
		return ""
	}
	return time.Duration(*d).String()
}
