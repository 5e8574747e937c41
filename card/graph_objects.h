/* User objects of graphs: an object that a program hands to a graph lives as long as the graph, and a function drops
 * it. torch keeps memory alive in this way, so the functions have to be called when the last owner is gone.
 *
 * references = those of the program + those of each graph + those of each graph's executables */

#ifndef GAPLESS_CARD_GRAPH_OBJECTS_H
#define GAPLESS_CARD_GRAPH_OBJECTS_H

/* An executable was made of `graph`: it holds what the graph holds. On this card it has the number of its graph. */
void objects_of_executable(const void *graph);
/* One executable, or the graph, is gone with its references. */
void objects_drop_executable(const void *graph);
void objects_drop_graph(const void *graph);

#endif
