package cli

import (
	"errors"
	"os"

	"github.com/spf13/cobra"

	"github.com/perceptor/perceptor/internal/config"
)

// errPrinted ends a command that has printed its configuration.
var errPrinted = errors.New("printed")

// ConfigFlags adds the flags of the configuration, or of some sections, to cmd. The
// command then loads and validates the configuration and calls f with it.
func ConfigFlags(cmd *cobra.Command, needs config.Need, f func(cmd *cobra.Command, c *config.Config) error, sections ...string) {
	flags := cmd.Flags()
	file := flags.String("config", "", "configuration file (YAML); also "+config.FileVariable)
	show := flags.Bool("print-config", false, "print the effective configuration with the origin of each value and exit")
	config.Register(flags, sections...)
	flags.SortFlags = false
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		c, err := loadConfig(cmd, *file, needs, *show)
		if errors.Is(err, errPrinted) {
			return nil
		}
		if err != nil {
			return err
		}
		return f(cmd, c)
	}
}

func loadConfig(cmd *cobra.Command, file string, needs config.Need, show bool) (*config.Config, error) {
	if file == "" {
		file = os.Getenv(config.FileVariable)
	}
	loaded, err := config.Load(config.Sources{File: file, Flags: cmd.Flags()})
	if err != nil {
		return nil, &Error{Code: Usage, Err: err, Hint: "--help lists all keys as flags, with their defaults; --print-config shows the origin of each value"}
	}
	if show {
		if err := loaded.Print(cmd.OutOrStdout()); err != nil {
			return nil, err
		}
	}
	if err := loaded.Validate(needs); err != nil {
		return nil, &Error{Code: Usage, Err: err, Hint: "set values in a file (--config), in PERCEPTOR_ variables or by flags; --print-config shows the origin of each value"}
	}
	if show {
		return nil, errPrinted
	}
	return &loaded.Config, nil
}
