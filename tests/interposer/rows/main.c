/* The rows are in a shared object, so that they can also run in its constructor. */
int rows_main(int argc, char **argv);
int main(int argc, char **argv) { return rows_main(argc, argv); }
