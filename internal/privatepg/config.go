package privatepg

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"time"
)

// Config says what server to start. The zero value is not valid: either DataDir
// or Ephemeral must be set.
type Config struct {
	// DataDir is a folder that keeps the data. It is made if it is missing; its
	// files are listed in the package comment.
	DataDir string
	// Ephemeral puts the data into a temporary folder that Stop removes, and
	// switches off what only matters when the machine loses power: fsync and
	// full_page_writes. Commits stay synchronous, which costs next to nothing
	// then: without that a Kill would lose commits that were answered.
	Ephemeral bool
	// Durable keeps both on for an ephemeral server too, for measurements.
	Durable bool
	// Port on 127.0.0.1, 0..65535. 0 is a free port, chosen by Start.
	Port int
	// SocketOnly opens no TCP port: the server is reached by its unix socket only.
	SocketOnly bool
	// ExtraSettings are server settings by name, such as max_connections (200
	// unless set here). The names that say where the server lives are refused.
	ExtraSettings map[string]string
	// StartTimeout bounds the wait until the server accepts connections, crash
	// recovery included. Default 60 s.
	StartTimeout time.Duration
	// Logger hears of starts and stops. Default: nobody does.
	Logger *slog.Logger
}

// reserved are the settings that this package relies on.
var reserved = []string{
	"config_file", "data_directory", "external_pid_file", "hba_file", "listen_addresses",
	"logging_collector", "port", "unix_socket_directories",
}

// Validate returns every fault of the configuration, joined.
func (c Config) Validate() error {
	var faults []error
	if c.Ephemeral == (c.DataDir != "") {
		faults = append(faults, errors.New("either a data directory or an ephemeral server must be asked for"))
	}
	if c.Port < 0 || c.Port > 65535 {
		faults = append(faults, fmt.Errorf("port %d is outside 0..65535", c.Port))
	}
	if c.StartTimeout < 0 {
		faults = append(faults, fmt.Errorf("start timeout %v is negative", c.StartTimeout))
	}
	for _, name := range reserved {
		if _, set := c.ExtraSettings[name]; set {
			faults = append(faults, fmt.Errorf("the setting %s is chosen by the private server itself", name))
		}
	}
	return errors.Join(faults...)
}

func (c Config) withDefaults() Config {
	if c.StartTimeout == 0 {
		c.StartTimeout = time.Minute
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}

// serverArgs are the arguments of postgres. Settings go here and not into
// postgresql.conf, so that the same data can be started with other settings.
func (c Config) serverArgs(pgdata, socketDir string, port int) []string {
	settings := map[string]string{
		"max_connections": "200",
		"shared_buffers":  "128MB",
		"timezone":        "UTC",
		"log_timezone":    "UTC",
		"log_line_prefix": "%m [%p] %d ",
	}
	if c.Ephemeral && !c.Durable {
		settings["fsync"] = "off"
		settings["full_page_writes"] = "off"
	}
	maps.Copy(settings, c.ExtraSettings)
	settings["listen_addresses"] = "127.0.0.1"
	if c.SocketOnly {
		settings["listen_addresses"] = ""
	}
	settings["port"] = strconv.Itoa(port)
	settings["unix_socket_directories"] = socketDir
	settings["logging_collector"] = "off"

	args := []string{"-D", pgdata}
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		args = append(args, "-c", name+"="+settings[name])
	}
	return args
}
