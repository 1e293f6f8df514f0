// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/quernmr/quern/jobs"
	"github.com/quernmr/quern/mapreduce/task"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/spf13/viper"
	"go.yaml.in/yaml/v3"
)

// envPrefix is what the names of our environment variables begin with.
const envPrefix = "QUERN_"

// reportKeys are the keys that say what quern tells about a job; they may stand
// in the configuration file and the environment like those of jobs.Common.
var reportKeys = []string{"quiet", "verbose", "json"}

// envName returns the environment variable of a key.
func envName(key string) string {
	return envPrefix + strings.ToUpper(strings.ReplaceAll(key, "-", "_"))
}

// origin says where an option's value comes from; the greater is the stronger.
type origin int

const (
	fromDefault origin = iota
	fromConfig
	fromJobFile
	fromEnvironment
	fromFlag
)

// configure gives every flag of cmd that the command line leaves out its value
// from the environment or else the configuration file, and returns where each
// flag's value comes from. job is the job whose section and keys count; "" if
// there is none.
//
// A task of a cluster's job is to do the same on every host: for it the command line
// alone counts.
func (a *app) configure(cmd *cobra.Command, job string) (map[string]origin, error) {
	if task.Started() {
		origins := map[string]origin{}
		cmd.Flags().Visit(func(f *pflag.Flag) { origins[f.Name] = fromFlag })
		return origins, nil
	}
	if err := checkEnvironment(a.environ); err != nil {
		return nil, err
	}
	v := viper.New()
	if err := v.BindPFlags(cmd.Flags()); err != nil {
		return nil, err
	}
	path, err := a.configFile(cmd)
	if err != nil {
		return nil, err
	}
	lines := map[string]int{}
	if path != "" {
		settings, at, err := readConfig(path, job)
		if err != nil {
			return nil, err
		}
		lines = at
		if err := v.MergeConfigMap(settings); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
	}
	var failed error
	origins := map[string]origin{}
	a.origins = origins
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if f.Annotations[groupKey] == nil {
			return
		}
		if f.Changed {
			origins[f.Name] = fromFlag
			return
		}
		// An empty variable counts as unset.
		if name := envName(f.Name); !notForUs(name, os.Getenv(name)) {
			failed = errors.Join(failed, v.BindEnv(f.Name, name))
		}
		if !v.IsSet(f.Name) {
			return
		}
		values := v.GetStringSlice(f.Name)
		source := fmt.Sprintf("%s:%d: %s", path, lines[f.Name], f.Name)
		origins[f.Name] = fromConfig
		if one, ok := v.Get(f.Name).(string); ok {
			values = []string{one}
			if env := os.Getenv(envName(f.Name)); env != "" && !notForUs(envName(f.Name), env) {
				source = envName(f.Name)
				origins[f.Name] = fromEnvironment
			}
		}
		if err := setFlag(f, values); err != nil && failed == nil {
			failed = &usageError{err: fmt.Errorf("%s: %w", source, err)}
		}
	})
	return origins, failed
}

// ofCluster are variables that container platforms set for a service whose
// name is ours; they are not meant for us.
var ofCluster = regexp.MustCompile(`^QUERN_([A-Z0-9_]*_)?(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]*)?|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)$`)

// notForUs says whether a variable is one of those although it has the name of a
// setting: QUERN_PORT=tcp://10.0.0.1:80.
func notForUs(name, value string) bool {
	return ofCluster.MatchString(name) && strings.Contains(value, "://")
}

// checkEnvironment refuses variables that begin with QUERN_ and mean nothing.
func checkEnvironment(environ []string) error {
	var unknown []string
	known := map[string]bool{}
	for _, key := range allKeys() {
		known[envName(key)] = true
	}
	for _, e := range environ {
		name, _, _ := strings.Cut(e, "=")
		if strings.HasPrefix(name, envPrefix) && !known[name] && !ofCluster.MatchString(name) && !strings.HasPrefix(name, labPrefix) {
			unknown = append(unknown, name)
		}
	}
	if len(unknown) == 0 {
		return nil
	}
	slices.Sort(unknown)
	names := make([]string, 0, len(known))
	for name := range known {
		names = append(names, name)
	}
	slices.Sort(names)
	return unknownKey("environment variable", unknown[0], names)
}

// flagsAlone refuses variables that are named after a flag of a command that takes none, so
// that they are not ignored in silence. Those that other commands take are fine.
func (a *app) flagsAlone(cmd *cobra.Command) error {
	taken := map[string]bool{}
	for _, key := range allKeys() {
		taken[key] = true
	}
	var failed error
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		name := envName(f.Name)
		for _, e := range a.environ {
			if at, value, _ := strings.Cut(e, "="); at == name && value != "" && !taken[f.Name] && !notForUs(name, value) && failed == nil {
				failed = usageErrorf(cmd, "%s: %s takes no variables; give --%s, and unset it", name, cmd.CommandPath(), f.Name)
			}
		}
	})
	return failed
}

// homeHint says what to do about a configuration file that may not be looked at.
func homeHint(path string, err error) string {
	if !errors.Is(err, fs.ErrPermission) {
		return ""
	}
	for name, rest := range map[string]string{"XDG_CONFIG_HOME": "", "HOME": ".config"} {
		if folder := os.Getenv(name); folder != "" && path == filepath.Join(folder, rest, "quern", "config.yaml") {
			return name + " may be that of another user: unset it, or name a file by --config"
		}
	}
	return "name a file that you may read by --config"
}

// unknownKey makes the error for a key that means nothing.
func unknownKey(what, key string, known []string) error {
	text := fmt.Sprintf("unknown %s %s", what, key)
	if near := nearest(key, known); near != "" {
		text += ", did you mean " + near + "?"
	}
	return &usageError{errors.New(text), "see 'quern help configuration'"}
}

// allKeys returns every key of any job, and those that all have.
func allKeys() []string {
	keys := append(topKeys(), "config")
	for _, d := range jobs.All() {
		keys = append(keys, keysOf(d.New())...)
	}
	return keys
}

// generalKeys returns the keys that all jobs have.
func generalKeys() []string {
	return append(keysOf(new(jobs.Common)), reportKeys...)
}

// topKeys returns the keys that stand at the top of a configuration file: those of all
// jobs, those of the host, and those of the cluster.
func topKeys() []string {
	return slices.Concat(generalKeys(), keysOf(new(shuffleSettings)), keysOf(new(clusterSettings)))
}

// configFile returns the path of the configuration file, or "" if there is none.
func (a *app) configFile(cmd *cobra.Command) (string, error) {
	if f := cmd.Flags().Lookup("config"); f != nil && f.Value.String() != "" {
		return f.Value.String(), nil
	}
	if path := os.Getenv(envName("config")); path != "" {
		return path, nil
	}
	folder := os.Getenv("XDG_CONFIG_HOME")
	if !filepath.IsAbs(folder) { // the standard says that other values are to be ignored
		home, err := os.UserHomeDir()
		if err != nil {
			return "", nil // no home, no file
		}
		folder = filepath.Join(home, ".config")
	}
	path := filepath.Join(folder, "quern", "config.yaml")
	if _, err := os.Stat(path); err != nil {
		if errors.Is(err, os.ErrNotExist) {
			return "", nil
		}
		return "", &usageError{fmt.Errorf("configuration: %w", err), homeHint(path, err)}
	}
	return path, nil
}

// readConfig reads a configuration file and returns the settings that count
// for job (a string or a list of strings each) and the lines they stand in.
// Every key is checked, those of other jobs too.
func readConfig(path, job string) (map[string]any, map[string]int, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, nil, &usageError{fmt.Errorf("configuration: %w", err), homeHint(path, err)}
	}
	settings, lines, err := parseConfig(text, job)
	if err != nil {
		var usage *usageError
		if errors.As(err, &usage) {
			return nil, nil, &usageError{fmt.Errorf("%s:%w", path, usage.err), usage.hint}
		}
		return nil, nil, &usageError{fmt.Errorf("%s: %w", path, err), "see 'quern help configuration'"}
	}
	return settings, lines, nil
}

// parseConfig does the work of readConfig on the file's text. A usageError's
// text begins with the line.
func parseConfig(text []byte, job string) (map[string]any, map[string]int, error) {
	settings, lines := map[string]any{}, map[string]int{}
	var document yaml.Node
	if err := yaml.Unmarshal(text, &document); err != nil {
		return nil, nil, err
	}
	if len(document.Content) == 0 {
		return settings, lines, nil // an empty file
	}
	root := document.Content[0]
	if root.Kind == yaml.ScalarNode && root.Tag == "!!null" {
		return settings, lines, nil // nothing but comments
	}
	general, top := generalKeys(), topKeys()
	names := slices.Clone(top)
	for _, d := range jobs.All() {
		names = append(names, d.Name)
	}
	// A job's section is stronger than the keys at the top, wherever it stands.
	inSection, sectionLines := map[string]any{}, map[string]int{}
	err := eachKey(root, func(key string, at int, value *yaml.Node) error {
		if slices.Contains(top, key) {
			return addSetting(settings, lines, key, at, value)
		}
		definition, ok := jobs.Lookup(key)
		if !ok {
			return atLine(at, unknownKey("key", key, names))
		}
		known := append(keysOf(definition.New()), general...)
		return eachKey(value, func(key string, at int, value *yaml.Node) error {
			if !slices.Contains(known, key) {
				return atLine(at, unknownKey("key", definition.Name+"."+key, prefixed(definition.Name+".", known)))
			}
			if definition.Name != job {
				return addSetting(map[string]any{}, map[string]int{}, key, at, value)
			}
			return addSetting(inSection, sectionLines, key, at, value)
		})
	})
	if err != nil {
		return nil, nil, err
	}
	for key, value := range inSection {
		settings[key], lines[key] = value, sectionLines[key]
	}
	return settings, lines, nil
}

func prefixed(prefix string, names []string) []string {
	out := make([]string, len(names))
	for i, n := range names {
		out[i] = prefix + n
	}
	return out
}

// eachKey calls fn for the keys of a mapping.
func eachKey(mapping *yaml.Node, fn func(key string, line int, value *yaml.Node) error) error {
	for mapping.Kind == yaml.AliasNode {
		mapping = mapping.Alias
	}
	if mapping.Kind == yaml.ScalarNode && mapping.Tag == "!!null" {
		return nil
	}
	if mapping.Kind != yaml.MappingNode {
		return atLine(mapping.Line, errors.New("keys with values are wanted here"))
	}
	seen := map[string]bool{}
	for i := 0; i+1 < len(mapping.Content); i += 2 {
		key := mapping.Content[i]
		if key.Kind != yaml.ScalarNode || key.Tag == "!!merge" {
			return atLine(key.Line, errors.New("a plain key is wanted here"))
		}
		if seen[key.Value] {
			return atLine(key.Line, fmt.Errorf("%s stands here a second time", key.Value))
		}
		seen[key.Value] = true
		if err := fn(key.Value, key.Line, mapping.Content[i+1]); err != nil {
			return err
		}
	}
	return nil
}

// addSetting takes a scalar or a list of scalars; null leaves the key unset.
func addSetting(settings map[string]any, lines map[string]int, key string, line int, value *yaml.Node) error {
	for value.Kind == yaml.AliasNode {
		value = value.Alias
	}
	switch {
	case value.Kind == yaml.ScalarNode && value.Tag == "!!null":
		return nil
	case value.Kind == yaml.ScalarNode:
		settings[key] = value.Value
	case value.Kind == yaml.SequenceNode:
		list := []string{}
		for _, item := range value.Content {
			if item.Kind != yaml.ScalarNode {
				return atLine(item.Line, fmt.Errorf("%s: a list of plain values is wanted", key))
			}
			list = append(list, item.Value)
		}
		settings[key] = list
	default:
		return atLine(value.Line, fmt.Errorf("%s: a plain value is wanted", key))
	}
	lines[key] = line
	return nil
}

// atLine makes a usage error whose text begins with a line's number.
func atLine(line int, err error) error {
	hint := "see 'quern help configuration'"
	return &usageError{fmt.Errorf("%d: %w", line, err), hint}
}

const configurationHelp = `Every option of a job, and what is about this host, can be set in four places; the
first that sets it counts:

  1. a flag on the command line           --min-count 5
  2. an environment variable              QUERN_MIN_COUNT=5
  3. the configuration file               min-count: 5
  4. the default

Variables are named QUERN_ and the flag's name in capitals, with _ for -. An
empty variable counts as unset.

The file is the one named by --config or QUERN_CONFIG, or else quern/config.yaml
in $XDG_CONFIG_HOME (~/.config if that is not set). Options that all jobs have
stand at its top. A section with the name of a job holds options of that job,
and may set common ones for that job alone:

    memory: 4GiB
    format: jsonl
    wordcount:
      lower: true
      min-count: 2
    sort:
      spill-dir: /fast/disk

What is about this host and no job (--shuffle, --interface and the like, see
'quern doctor --help'), and how a cluster is reached (master, certs, token, see
'quern jobs --help'), stands at the top, too, and only there.

A key or QUERN_ variable that means nothing is an error.

A job file (quern run) says all about the job itself: of the configuration and
the environment only the common options count. Order: flags, environment, job
file, configuration file.

'quern lab' and 'quern bench' describe an experiment, and take flags alone.`
