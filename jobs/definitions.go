// SPDX-License-Identifier: Apache-2.0

package jobs

var definitions = []Definition{
	wordcountDefinition, grepDefinition, countDefinition, aggregateDefinition, distinctDefinition,
	topkDefinition, histogramDefinition, sortDefinition, joinDefinition, dedupDefinition,
}
